-- ---------------------------------------------------------------- fixed window

local fixed_window = {}

-- One number: the windows' length.  More: edges of a calendar's windows, which the caller chose by its own clock.
function fixed_window.parse(p, numbers)
  if #numbers == 1 then p.window_ms = numbers[1] else p.edges = numbers end
end

-- Nothing has been written yet: the caller may ask again by this clock.
local function other_windows(ms)
  error({err = '@OTHER_WINDOWS@ ' .. ms})
end

-- which window, and how long until it ends
function fixed_window.window(p, ms)
  if p.window_ms then return floor(ms / p.window_ms), p.window_ms - ms % p.window_ms end
  local edges = p.edges
  for i = 1, #edges - 1 do
    if edges[i] <= ms and ms < edges[i + 1] then return edges[i], edges[i + 1] - ms end
  end
  other_windows(ms)
end

-- As window, and the bucket's own key.  The caller has named the window by its clock, since Redis must be told the very
-- key that is read: while a slot moves, it looks for that one to say where the call belongs.
function fixed_window.named(p, key, ms)
  local window, left = fixed_window.window(p, ms)
  local suffix = ':' .. window
  if key:sub(-#suffix) ~= suffix then other_windows(ms) end
  return window, left, key:sub(1, -#suffix - 1)
end

-- An adaptive one is in escrow: see 2_windows.lua.  s.before: what counts as used where no count is stored.
function fixed_window.share(s, p, key, t)
  local window, _, bucket = fixed_window.named(p, key, floor(t / 1000))
  s.share, s.kind, s.before, s.granted = window_share(bucket, p.domain, window, 1000 * (p.window_ms or 1) * window)
  s.since, s.before_since = 0, 0
end

local function top_of(s, p)
  return p.adaptive and region_capacity(p.capacity, s.share, p.regions) or p.part
end

function fixed_window.examine(s, p, key, cost, ms)
  s.window, s.left, s.bucket = fixed_window.named(p, key, ms)
  s.end_ms = ms + s.left
  s.top = top_of(s, p)
  local stored = redis.call('GET', s.key)
  if stored then
    s.level = tonumber(stored)
  else
    s.level = p.adaptive and region_capacity(p.capacity, s.before, p.regions) or 0
    s.denies_freely = s.level > 0
  end
  return cost, s.top - s.level
end

function fixed_window.finish(s, p, charge)
  if charge then
    s.level = min(s.level + s.cost, max(s.level, 2 * p.capacity))
    redis.call('SET', s.key, s.level, 'PX', s.left + STEP_KEPT_MS)
  end
  local wait, remaining = 0, max(0, s.top - s.level)
  if s.reason == LIMITED then
    wait = s.cost > s.top and RETRY_FOR_LARGER_SHARE_MS or s.left
    if p.adaptive then wait = min(RETRY_FOR_LARGER_SHARE_MS, s.left) end
  end
  if p.adaptive and s.cost > 0 and s.reason <= LIMITED and (s.reason == LIMITED or 2 * remaining < s.top) then
    note_use(s.bucket, s.window, s.end_ms, s.top - remaining, s.cost, s.top, s.granted, p.capacity, p.regions)
  end
  return remaining, wait, s.left
end

function fixed_window.give_back(s, p, key, cost, ms)
  local _, left = fixed_window.window(p, ms)
  local state = redis.call('GET', key)
  local top = top_of(s, p)
  if not state then return top end
  local count = max(0, tonumber(state) - cost)
  redis.call('SET', key, count, 'PX', left + STEP_KEPT_MS)
  return max(0, top - count)
end

fixed_window.adaptive = true
kinds['2'] = fixed_window

-- ---------------------------------------------------------------- sliding window by a log
-- regional_limiter/algorithms/sliding_window_log.py has the layout; each entry is one element of a list, the base the
-- first.  A list because it is trimmed, extended and read in the middle at the same cost whatever its length.

local TRIM_MOST = @TRIM_MOST@
local TOTAL = 2 ^ 48
local FIRST_LOOKED_AT = 4 -- expired entries are few as a rule: these come with the base in one call

local sliding_window_log = {}

function sliding_window_log.parse(p, numbers)
  p.window_ms = numbers[1]
end

function sliding_window_log.window(p, ms)
  return ms
end

function sliding_window_log.reaches(p, charged_ms, ms)
  return ms - charged_ms < p.window_ms
end

local function entry_of(key, place)
  return unpack_fields('<I6I6', redis.call('LINDEX', key, place))
end

-- The first place in [low, high] whose entry fits; high is known to fit.
local function first_place(key, low, high, fits)
  while low < high do
    local middle = floor((low + high) / 2)
    if fits(entry_of(key, middle)) then high = middle else low = middle + 1 end
  end
  return low
end

local function first_that_counts(s, key, edge)
  local head = redis.call('LRANGE', key, 0, FIRST_LOOKED_AT)
  local _, base = unpack_fields('<I6I6', head[1])
  if #head[1] > 12 then s.rebased = unpack_fields('<I6', head[1], 13) end
  for place = 1, #head - 1 do
    local time, total = unpack_fields('<I6I6', head[place + 1])
    if time > edge then return place, base end
    base = total
  end
  local first = first_place(key, #head, s.held + 1, function(time) return time > edge end)
  if first > #head then _, base = entry_of(key, first - 1) end
  return first, base
end

-- s.held entries beside the base, s.first that counts, s.base before it, s.last (its time), s.total, s.used, s.time,
-- s.rebased; s.collapsed: what counts has become one entry of now, and nothing of the list is left.  Places as in Redis.
local function look_at_log(s, p, key, ms)
  s.key, s.now, s.time, s.rebased, s.collapsed = key, ms, ms, nil, false
  s.held, s.first, s.base, s.total, s.last, s.used = redis.call('LLEN', s.key) - 1, 1, 0, 0, ms, 0
  if s.held < 0 then return end
  if s.held > 0 then s.last, s.total = entry_of(s.key, -1) end
  s.time = max(ms, s.last)
  s.first, s.base = first_that_counts(s, s.key, s.time - p.window_ms)
  if s.held == 0 then s.total = s.base end
  s.used = (s.total - s.base) % TOTAL
  if s.last - ms > STEP_KEPT_MS and not (s.rebased and abs(ms - s.rebased) < REBASE_EVERY_MS) then
    s.collapsed, s.rebased, s.time, s.last = true, ms, ms, ms
    s.first, s.base, s.total, s.held = 1, 0, s.used, s.used > 0 and 1 or 0
  end
end

local function log_reset(s, p)
  if s.used > 0 then return s.last + p.window_ms - s.now end
  return 0
end

local function expire_log(s, p)
  redis.call('PEXPIRE', s.key, max(1, min(log_reset(s, p), 2 * p.window_ms)))
end

local function push_log(s, time, total)
  redis.call('RPUSH', s.key, pack('<I6I6', time, total % TOTAL))
end

-- A log that is not in Redis yet, or no longer.
local function begin_log(s)
  if s.collapsed then redis.call('DEL', s.key) end
  redis.call('RPUSH', s.key, pack('<I6I6', 0, 0) .. (s.rebased and pack('<I6', s.rebased) or ''))
end

local function trim_log(s)
  local trimmed = min(s.first - 1, TRIM_MOST)
  if trimmed == 0 then return end
  redis.call('LTRIM', s.key, trimmed, -1)
  if s.rebased then redis.call('LSET', s.key, 0, redis.call('LINDEX', s.key, 0) .. pack('<I6', s.rebased)) end
  s.first, s.held = s.first - trimmed, s.held - trimmed
end

local function charge_log(s, p)
  local before = s.used
  s.used = min(before + s.cost, max(before, 2 * p.capacity))
  s.total = s.total + s.used - before
  if s.held < 0 or s.collapsed then
    begin_log(s)
    push_log(s, s.time, s.total)
    s.held = 1
    s.last = s.time
  elseif s.used > before then
    if s.held > 0 and s.last == s.time then
      redis.call('LSET', s.key, -1, pack('<I6I6', s.time, s.total % TOTAL))
    else
      push_log(s, s.time, s.total)
      s.held = s.held + 1
    end
    s.last = s.time
  end
  trim_log(s)
  expire_log(s, p)
end

local function store_collapsed(s, p)
  begin_log(s)
  if s.used > 0 then push_log(s, s.time, s.total) end
  expire_log(s, p)
end

function sliding_window_log.examine(s, p, key, cost, ms)
  look_at_log(s, p, key, ms)
  return cost, p.part - s.used
end

function sliding_window_log.finish(s, p, charge)
  if charge then
    charge_log(s, p)
  elseif s.collapsed and s.used > 0 and s.cost > 0 and s.reason <= LIMITED then
    store_collapsed(s, p)
  end
  local wait = 0
  if s.reason == LIMITED then
    if s.cost > p.part then
      wait = RETRY_FOR_LARGER_SHARE_MS
    else
      local base, units = s.base, s.used + s.cost - p.part
      local place = first_place(s.key, s.first, s.held, function(_, total) return (total - base) % TOTAL >= units end)
      wait = entry_of(s.key, place) + p.window_ms - s.now
    end
  end
  return max(0, p.part - s.used), wait, log_reset(s, p)
end

function sliding_window_log.give_back(s, p, key, cost, ms)
  look_at_log(s, p, key, ms)
  local back = min(cost, s.used)
  if back > 0 then
    s.used = s.used - back
    s.total = s.base + s.used
    if s.collapsed then
      store_collapsed(s, p)
    elseif s.used > 0 then
      local base, used = s.base, s.used
      local place = first_place(s.key, s.first, s.held, function(_, total) return (total - base) % TOTAL >= used end)
      s.last = entry_of(s.key, place)
      redis.call('LTRIM', s.key, 0, place)
      redis.call('LSET', s.key, place, pack('<I6I6', s.last, s.total % TOTAL))
      expire_log(s, p)
    else
      redis.call('LTRIM', s.key, 0, s.first - 1)
      expire_log(s, p)
    end
  end
  return max(0, p.part - s.used)
end

kinds['6'] = sliding_window_log

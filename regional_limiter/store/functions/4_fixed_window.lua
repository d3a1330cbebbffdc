-- ---------------------------------------------------------------- fixed window

local fixed_window = {}

-- One number: the windows' length.  More: edges of a calendar's windows, which the caller chose by its own clock.
function fixed_window.parse(p, numbers)
  if #numbers == 1 then p.window_ms = numbers[1] else p.edges = numbers end
end

-- which window, and how long until it ends
function fixed_window.window(p, ms)
  if p.window_ms then return floor(ms / p.window_ms), p.window_ms - ms % p.window_ms end
  local edges = p.edges
  for i = 1, #edges - 1 do
    if edges[i] <= ms and ms < edges[i + 1] then return edges[i], edges[i + 1] - ms end
  end
  -- Nothing has been written yet: the caller may ask again by this clock.
  error({err = '@OTHER_WINDOWS@ ' .. ms})
end

function fixed_window.examine(s, p, key, cost, ms)
  s.window, s.left = fixed_window.window(p, ms)
  s.key = key .. ':' .. s.window
  s.level = tonumber(redis.call('GET', s.key) or 0)
  return cost, p.part - s.level
end

function fixed_window.finish(s, p, charge)
  if charge then
    s.level = min(s.level + s.cost, max(s.level, 2 * p.capacity))
    redis.call('SET', s.key, s.level, 'PX', s.left + STEP_KEPT_MS)
  end
  local wait = 0
  if s.reason == LIMITED then wait = s.cost > p.part and RETRY_FOR_LARGER_SHARE_MS or s.left end
  return max(0, p.part - s.level), wait, s.left
end

function fixed_window.give_back(s, p, key, cost, ms)
  local window, left = fixed_window.window(p, ms)
  key = key .. ':' .. window
  local state = redis.call('GET', key)
  if not state then return p.part end
  local count = max(0, tonumber(state) - cost)
  redis.call('SET', key, count, 'PX', left + STEP_KEPT_MS)
  return max(0, p.part - count)
end

kinds['2'] = fixed_window

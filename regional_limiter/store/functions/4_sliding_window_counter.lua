-- ---------------------------------------------------------------- sliding window by two counts
-- regional_limiter/algorithms/sliding_window_counter.py has the layout and the conversions.

local COUNT_MOST = 2 ^ 41 - 1

local sliding_window_counter = {}

function sliding_window_counter.parse(p, numbers)
  p.window_ms = numbers[1]
end

function sliding_window_counter.window(p, ms)
  return ms
end

function sliding_window_counter.reaches(p, charged_ms, ms)
  return floor(charged_ms / p.window_ms) == floor(ms / p.window_ms)
end

-- floor(a * b / c) by eleven bits of a at a time: exact for a < 2^44, b and c < 2^41, and a result below 2^53.
local function mul_div(a, b, c)
  if a * b < EXACT then return floor(a * b / c) end
  local quotient, rest = 0, 0
  for shift = 33, 0, -11 do
    local part = rest * 2048 + floor(a / 2 ^ shift) % 2048 * b
    local whole = floor(part / c)
    quotient, rest = quotient * 2048 + whole, part - whole * c
  end
  return quotient
end

local function used_of(s, window_ms)
  return s.current + s.previous - mul_div(s.previous, s.elapsed, window_ms)
end

-- The counts brought up to now: s.number, previous, current, ahead, elapsed, rebased, unsettled.  false: no key.
local function look_at_counts(s, p, key, ms)
  s.key = key
  s.number, s.elapsed = floor(ms / p.window_ms), ms % p.window_ms
  s.previous, s.current, s.ahead, s.rebased, s.unsettled = 0, 0, 0, nil, false
  local state = redis.call('GET', s.key)
  if not state then return false end
  local window_ms, number, previous, current = unpack_fields('<I5I6I6I6', state)
  if #state > 23 then s.rebased = unpack_fields('<I6', state, 24) end
  local present = floor(ms / window_ms)
  s.number, s.elapsed, s.previous, s.current = present, ms % window_ms, previous, current
  if present == number + 1 then
    s.previous, s.current = current, 0
  elseif present > number then
    s.previous, s.current = 0, 0
  elseif present < number then
    local ahead = number * window_ms - ms
    if ahead <= STEP_KEPT_MS or (s.rebased and abs(ms - s.rebased) < REBASE_EVERY_MS) then
      s.number, s.ahead, s.elapsed = number, ahead, 0
    else
      s.rebased, s.unsettled = ms, true
      s.previous, s.current = 0, min(previous + current, COUNT_MOST)
    end
  end
  if window_ms ~= p.window_ms then
    s.previous, s.current, s.unsettled = 0, min(used_of(s, window_ms), COUNT_MOST), true
    s.number = floor((ms + s.ahead) / p.window_ms)
    s.ahead = max(0, s.number * p.window_ms - ms)
    s.elapsed = ms + s.ahead - s.number * p.window_ms
  end
  return true
end

local function counts_reset(s, p)
  if s.current > 0 then return s.ahead + 2 * p.window_ms - s.elapsed end
  if s.previous > 0 then return s.ahead + p.window_ms - s.elapsed end
  return 0
end

local function store_counts(s, p)
  local state = pack('<I5I6I6I6', p.window_ms, s.number, s.previous, s.current)
  if s.rebased then state = state .. pack('<I6', s.rebased) end
  redis.call('SET', s.key, state, 'PX', max(1, min(counts_reset(s, p), 2 * p.window_ms)))
end

function sliding_window_counter.examine(s, p, key, cost, ms)
  look_at_counts(s, p, key, ms)
  return cost, p.part - used_of(s, p.window_ms)
end

function sliding_window_counter.finish(s, p, charge)
  if charge then s.current = min(s.current + s.cost, max(s.current, 2 * p.capacity)) end
  if charge or (s.unsettled and s.cost > 0 and s.reason <= LIMITED) then store_counts(s, p) end
  local wait, free = 0, p.part - s.cost
  if s.reason == LIMITED then
    if free < 0 then
      wait = RETRY_FOR_LARGER_SHARE_MS
    elseif s.current <= free then
      wait = s.ahead - s.elapsed + p.window_ms - mul_div(p.window_ms, free - s.current, s.previous)
    else
      wait = s.ahead - s.elapsed + 2 * p.window_ms - mul_div(p.window_ms, free, s.current)
    end
  end
  return max(0, p.part - used_of(s, p.window_ms)), wait, counts_reset(s, p)
end

function sliding_window_counter.give_back(s, p, key, cost, ms)
  if look_at_counts(s, p, key, ms) then
    s.current = max(0, s.current - cost)
    store_counts(s, p)
  end
  return max(0, p.part - used_of(s, p.window_ms))
end

kinds['5'] = sliding_window_counter

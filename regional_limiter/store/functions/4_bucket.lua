-- ---------------------------------------------------------------- token bucket, GCRA, leaky bucket

local function size_index(value, a, b, c)
  if value < a then return 0 elseif value < b then return 1 elseif value < c then return 2 end
  return 3
end

local function nearest(stored, ms, modulus)
  local behind = (ms - stored) % modulus
  if behind < modulus / 2 then return ms - behind end
  return ms - behind + modulus
end

local TIME_MODULUS, NUMBER_TIME_MODULUS = 1099511627776, 1000000000

-- A bucket as one integer.  Its two halves are put together as text: the whole is above 2^53.
local function unpack_number(state, ms)
  if not state:match('^%d+$') then return nil end
  local high, time = tonumber(state:sub(1, -10)) or 0, tonumber(state:sub(-9))
  local index = high % #divisors
  local used = (high - index) / #divisors
  return nearest(time, ms, NUMBER_TIME_MODULUS), -used * @SHARE_UNITS@, 0, divisors[index + 1], @SHARE_UNITS@, nil
end

local function pack_number(p, time, level, share, rebased, out)
  local used = p.capacity * p.unit - level
  if share ~= @SHARE_UNITS@ or rebased or out or used % @SHARE_UNITS@ ~= 0 then return nil end
  local high, low = used / @SHARE_UNITS@ * #divisors + p.index, time % NUMBER_TIME_MODULUS
  if high > 9223372036 or (high == 9223372036 and low > 854775807) then return nil end
  return high > 0 and ('%d%09d'):format(high, low) or ('%d'):format(low)
end

-- The layout of a packed bucket and its conversions: regional_limiter/algorithms/bucket_state.py.
-- time, level, capacity, period, share, rebased (nil: never), out (nil: nothing);
-- nil: written by a version that this one cannot read
local function unpack_bucket(state, ms)
  local format = formats[byte(state, 1)]
  if not format or lengths[byte(state, 1)] ~= #state then return unpack_number(state, ms) end
  local head, time, capacity, period, level, share, rebased = unpack_fields(format, state)
  time = nearest(time, ms, TIME_MODULUS)
  if head < 64 then
    local _, _, _, _, _, _, _, edge, tokens, later, more = unpack_fields(format, state)
    rebased = rebased > 0 and nearest(rebased - 1, ms, TIME_MODULUS) or nil
    edge, later = nearest(edge, ms, TIME_MODULUS), nearest(later, ms, TIME_MODULUS)
    return time, level, capacity, period, share, rebased, new_out(edge, tokens, later, more)
  end
  if head < 128 then return time, level * @SHARE_UNITS@, capacity, period, @SHARE_UNITS@, nil end
  if head < 192 then return time, level, capacity, period, share, nil end
  return time, level, capacity, period, share, nearest(rebased, ms, TIME_MODULUS)
end

local function pack_bucket(p, time, level, share, rebased, out)
  if p.index then
    local number = pack_number(p, time, level, share, rebased, out)
    if number then return number end
  end
  local layout = 128
  if out then
    layout = 0
  elseif rebased then
    layout = 192
  elseif share == @SHARE_UNITS@ and level % @SHARE_UNITS@ == 0 then
    layout, level = 64, level / @SHARE_UNITS@
  end
  local head = layout + p.head + size_index(level >= 0 and level or -level - 1, 32768, 8388608, 2147483648)
  time = time % TIME_MODULUS
  if out then
    rebased = rebased and rebased % TIME_MODULUS + 1 or 0
    local edge, later = out[1] % TIME_MODULUS, out[3] % TIME_MODULUS
    return pack(formats[head], head, time, p.capacity, p.period, level, share, rebased, edge, out[2], later, out[4])
  end
  if layout == 64 then return pack(formats[head], head, time, p.capacity, p.period, level) end
  if layout == 128 then return pack(formats[head], head, time, p.capacity, p.period, level, share) end
  return pack(formats[head], head, time, p.capacity, p.period, level, share, rebased % TIME_MODULUS)
end

local function converted(p, level, capacity, period, share)
  local used = region_capacity(capacity, share, p.regions) * period * @SHARE_UNITS@ - level
  if period ~= p.period then
    local tokens = floor(used / (period * @SHARE_UNITS@))
    used = tokens * p.unit + ceil((used - tokens * period * @SHARE_UNITS@) / period) * p.period
  end
  return max(region_capacity(p.capacity, share, p.regions) * p.unit - used, -p.capacity * p.unit)
end

-- level, top, per_ms, time, earns (what it holds when it begins to gain), ahead (how far after now that is),
-- absent_full (how long until a missing bucket would be full), rebased, unsettled, out
local function look(state, p, ms, v, since, before, before_since)
  local tokens, unit = p.tokens, p.unit
  local top = region_capacity(p.capacity, v, p.regions) * unit
  local per_ms = tokens * v
  local since_ms, before_since_ms = ms, ms
  if p.adaptive then
    since_ms = v < before and floor(since / 1000) or ceil(since / 1000)
    before_since_ms = ceil(before_since / 1000)
  end
  local absent_full = p.adaptive and v > 0 and since_ms - ms + ceil(top / per_ms) or 0
  if not state then
    local level = top
    if p.adaptive then
      level = min(top, max(v > 0 and unit or 0, gained(0, ms - since_ms, per_ms, top)))
    end
    return level, top, per_ms, ms, 0, since_ms - ms, absent_full, nil, false
  end
  local stored, level, capacity, period, share, rebased, out = unpack_bucket(state, ms)
  if not stored then
    stored, level, share = ms, 0, v
  elseif capacity ~= p.capacity or period ~= p.period then
    level = converted(p, level, capacity, period, share)
  end
  local time, unsettled = ms, false
  if stored > ms then
    if stored - ms <= STEP_KEPT_MS or (rebased and abs(ms - rebased) < REBASE_EVERY_MS) then
      time = stored
    else
      -- What is out stays out equally long.
      if out then out = {out[1] - stored + ms, out[2], out[4] > 0 and out[3] - stored + ms or 0, out[4]} end
      stored, rebased, unsettled = ms, ms, true
    end
  end
  if not p.adaptive then
    local slower = min(share, v)
    local clip = share == v and top or min(top, region_capacity(p.capacity, slower, p.regions) * unit)
    if out then
      level = accrued(level, stored, time, tokens * slower, clip, unit, out)
    else
      level = gained(level, time - stored, tokens * slower, clip)
    end
    unsettled = unsettled or share ~= v
  elseif stored >= since_ms then
    if out then
      level = accrued(level, stored, time, per_ms, top, unit, out)
    else
      level = gained(level, time - stored, per_ms, top)
    end
  else
    if stored >= before_since_ms then
      local clip = region_capacity(p.capacity, before, p.regions) * unit
      level = accrued(level, stored, min(since_ms, time), tokens * before, clip, unit, out)
    else
      level = min(level, unit)
    end
    level = accrued(level, since_ms, time, per_ms, top, unit, out)
    unsettled = true
  end
  if out then out = still_out(out, time) end
  return level, top, per_ms, time, level, max(time, since_ms) - ms, absent_full, rebased, unsettled, out
end

local function reset_after(p, level, top, per_ms, earns, ahead, ms, out)
  if p.capacity == 0 then return 0 end
  if per_ms == 0 then return SHARE_ZERO_RESET_MS end
  if level >= top then return 0 end
  if not out then return ahead + ceil((top - earns) / per_ms) end
  return reached(earns, ms + ahead, top, per_ms, top, p.unit, out) - ms
end

local bucket = {adaptive = true}

function bucket.parse(p, numbers)
  p.tokens, p.period = numbers[1], numbers[2]
  p.unit = p.period * @SHARE_UNITS@
  p.head = size_index(p.capacity, 256, 65536, 16777216) * 16 + size_index(p.period, 256, 65536, 16777216) * 4
end

function bucket.examine(s, p, key, cost, ms)
  local state = redis.call('GET', key)
  s.level, s.top, s.per_ms, s.time, s.earns, s.ahead, s.absent_full, s.rebased, s.unsettled, s.out =
    look(state, p, ms, s.share, s.since, s.before, s.before_since)
  s.ms = ms
  return cost * p.unit, s.level
end

function bucket.finish(s, p, charge)
  local cost = s.cost
  if charge then
    s.level = max(s.level - cost * p.unit, -p.capacity * p.unit)
    s.earns, s.ahead = s.level, max(0, s.ahead)
  end
  local reset = reset_after(p, s.level, s.top, s.per_ms, s.earns, s.ahead, s.ms, s.out)
  if charge or (cost > 0 and s.unsettled and s.reason <= LIMITED) then
    local ttl = max(1, reset, s.absent_full)
    redis.call('SET', s.key, pack_bucket(p, s.time, s.level, s.share, s.rebased, s.out), 'PX', ttl)
  end
  local wait = 0
  if s.reason == LIMITED then
    if cost * p.unit > s.top then
      wait = RETRY_FOR_LARGER_SHARE_MS
    else
      wait = reached(s.earns, s.ms + s.ahead, cost * p.unit, s.per_ms, s.top, p.unit, s.out) - s.ms
    end
  end
  return max(0, floor(s.level / p.unit)), wait, reset
end

function bucket.give_back(s, p, key, cost, ms)
  local state = redis.call('GET', key)
  local level, top, per_ms, time, _, ahead, absent_full, rebased, _, out =
    look(state, p, ms, s.share, s.since, s.before, s.before_since)
  if state and p.capacity > 0 then
    level = min(cap_at(time, top, p.unit, out), level + min(cost, p.capacity) * p.unit)
    local ttl = max(1, reset_after(p, level, top, per_ms, level, max(0, ahead), ms, out), absent_full)
    redis.call('SET', key, pack_bucket(p, time, level, s.share, rebased, out), 'PX', ttl)
  end
  return max(0, floor(level / p.unit))
end

kinds['1'] = bucket

local gcra = {adaptive = true, examine = bucket.examine, finish = bucket.finish, give_back = bucket.give_back}

function gcra.parse(p, numbers)
  bucket.parse(p, numbers)
  p.index = p.whole and divisor_index[p.period]
end

kinds['3'] = gcra

local leaky_bucket = {adaptive = true, examine = bucket.examine, give_back = bucket.give_back}

function leaky_bucket.parse(p, numbers)
  bucket.parse(p, numbers)
  p.queue = numbers[3] == 1
end

function leaky_bucket.finish(s, p, charge)
  local turn = 0
  if p.queue and s.reason == OK then
    turn = reset_after(p, s.level, s.top, s.per_ms, s.earns, s.ahead, s.ms, s.out)
  end
  local remaining, wait, reset = bucket.finish(s, p, charge)
  return remaining, wait + turn, reset
end

kinds['4'] = leaky_bucket

#!lua name=apportion_@VERSION@
-- One enforcement point: decides and charges checks, and holds the shares in force.  The second implementation of
-- regional_limiter/algorithms and regional_limiter/model/enforcement.py; tests/golden and tests/contract drive both
-- with the same sequences.  Built by regional_limiter/store/library.py, which also has every wire in Python.
--
-- The wire.  Every function's name ends in _@VERSION@.  All numbers are decimal strings in, integers out.
-- LIMIT is one string: "kind capacity a b charge_denied sharing regions largest_share base_version base domain":
--   kind 1 token bucket (a tokens, b period_ms), 2 fixed window (a window_ms, b 0); sharing 0 whole, 1 static,
--   2 adaptive.  It is the same for every call of a rule, so it is parsed once and remembered.
-- VERDICT is nine integers: allowed, reason (0 ok, 1 limited, 2 exceeds_capacity, 3 zero_limit), remaining,
--   retry_after_ms (-1: waiting does not help), reset_after_ms, share, share kind (0 whole, 1 lease, 2 base,
--   3 floor), session left in us, consent left in us.
--
-- check          keys BUCKET x n [, RECORD, CHARGE x n]   args n, (cost, LIMIT) x n   -> VERDICT x n
-- refund         keys BUCKET x n [, CHARGE x n]           args n, (cost, LIMIT) x n   -> given back, remaining (x n)
-- touch          no keys   args node, beat blob                 -> time_us, rules_version, base_version,
--                                                                  nodes younger than 5 s, m, (domain, base) x m
-- offer          no keys   args (bucket key, cost) x n          -> keys held
-- collect        no keys   args -                               -> rules_version, m, (key, cost) x m, (blob, age_us)..
-- write          no keys   args nonce, instance, session, version, until_us, extend, all_known, base_version,
--                               m, (key, value) x m, (domain, base)..
--                                                               -> accepted, instance, time_us, age_us, session, version
-- publish_rules  no keys   args version, blob                   -> version now known
-- fetch_rules    no keys   args -                               -> version (-1: none), blob
--
-- RECORD holds a check's answer for 60 s, CHARGE what of its cost may still be given back; both carry the hash tag
-- of the buckets.  A fixed window is stored under BUCKET:<number of the window>, in the same slot.

local GAP_US, CONSENT_US = @GAP_US@, @CONSENT_US@
local BASE, FLOOR, DEFAULT = -1, -2, -3
local LEASES_MAX, LEASES_KEPT, DOMAINS_MAX = @LEASES_MAX@, @LEASES_KEPT@, @DOMAINS_MAX@
local DEMAND_MAX, DEMAND_A_REPLY, BEATS_MAX, BEAT_YOUNG_US = 10000, 2000, 1000, 5000000
local LIMITS_REMEMBERED = 4096
local RETRY_FOR_LARGER_SHARE_MS, SHARE_ZERO_RESET_MS = 1000, 60000
local STEP_KEPT_MS, REBASE_EVERY_MS, RECORD_MS = 2000, 30000, 60000
local EXACT = 9007199254740991

-- A library sees no standard function while it loads: the first call sets these.
local floor, ceil, abs, max, min, pack, unpack_fields, byte, tonumber, pairs

--@clock begin
local function clock(args)
  local time = redis.call('TIME')
  return time[1] * 1000000 + time[2]
end
--@clock end

local formats = {} -- head byte -> format of a packed bucket, and its length
local lengths = {}

local function set_up()
  floor, ceil, abs, max, min = math.floor, math.ceil, math.abs, math.max, math.min
  pack, unpack_fields, byte = struct.pack, struct.unpack, string.byte
  local capacity_sizes, period_sizes, level_sizes, tails = {1, 2, 3, 6}, {1, 2, 3, 5}, {2, 3, 4, 7}, {'', 'I2', 'I2I5'}
  for layout = 1, 3 do
    for c = 0, 3 do
      for p = 0, 3 do
        for l = 0, 3 do
          local head = layout * 64 + c * 16 + p * 4 + l
          local sizes = 'I' .. capacity_sizes[c + 1] .. 'I' .. period_sizes[p + 1] .. 'i' .. level_sizes[l + 1]
          formats[head] = '<BI5' .. sizes .. tails[layout]
          lengths[head] = struct.size(formats[head])
        end
      end
    end
  end
  tonumber, pairs = _G.tonumber, _G.pairs
end

-- ---------------------------------------------------------------- the variable: kept or lost as a whole (E1)

local var = nil

local function new_series(value, at) return {v = value, at = at, was = value, was_at = at} end

local function copy_series(s) return {v = s.v, at = s.at, was = s.was, was_at = s.was_at} end

local function turn(s, value, at)
  if value ~= s.v then s.was, s.was_at, s.v, s.at = s.v, s.at, value, at end
end

local function born(t)
  var = {
    last = t, written_at = t, born = t, instance = '', named_at = 0, session = 0, version = 0, ends = 0,
    consent = t + CONSENT_US, all_known = false, replid = '', default = new_series(FLOOR, t),
    leases = {}, leases_held = 0, bases = {}, domains_held = 0, base_version = -1, vector = {},
    beats = {}, beats_held = 0, demand = {}, demand_held = 0, rules_version = -1, rules_blob = '',
  }
end

local function enter(args)
  if not floor then set_up() end
  local t = clock(args)
  if not var or t < var.last or t > var.last + GAP_US then born(t) else var.last = t end
  return t
end

-- ---------------------------------------------------------------- the share in force (E2) and its history (E4)

local function floor_of(base) return floor(base * 20 / 1000) end

local function in_force(s, t)
  local v, at, was, was_at = s.v, s.at, s.was, s.was_at
  local session_end, consent_end = var.ends, var.consent
  if session_end > consent_end then consent_end = session_end end
  local written_at = var.written_at
  if written_at < session_end and session_end <= t and session_end < consent_end and v ~= FLOOR then
    was, was_at, v, at = v, at, FLOOR, session_end
  end
  if written_at < consent_end and consent_end <= t and v ~= BASE then
    was, was_at, v, at = v, at, BASE, consent_end
  end
  return v, at, was, was_at
end

local function resolve(value, base)
  if value == BASE then return base end
  local least = floor_of(base)
  if value == FLOOR or value < least then return least end
  return value
end

local function know_base(t, domain, version, base)
  local known = var.bases[domain]
  if not known then
    if var.domains_held >= DOMAINS_MAX then return end
    var.domains_held = var.domains_held + 1
    var.bases[domain] = {version = version, series = new_series(base, t)}
  elseif version > known.version then
    known.version = version
    turn(known.series, base, t)
  elseif version == known.version and base < known.series.v then
    turn(known.series, base, t)
  end
end

-- share, kind, since, share before, its since (in us)
local function share_of(t, key, domain)
  local lease = var.leases[key]
  local v, at, was, was_at = in_force(lease and lease.series or var.default, t)
  local known = var.bases[domain]
  local b, b_at, b_was, b_was_at = 0, var.born, 0, var.born
  if known then
    local s = known.series
    b, b_at, b_was, b_was_at = s.v, s.at, s.was, s.was_at
  end
  local since, value_before, base_before, before_since
  if at > b_at then
    since, value_before, base_before, before_since = at, was, b, max(was_at, b_at)
  elseif at == b_at then
    since, value_before, base_before, before_since = at, was, b_was, max(was_at, b_was_at)
  else
    since, value_before, base_before, before_since = b_at, v, b_was, max(at, b_was_at)
  end
  if before_since > since then before_since = since end
  local kind = 1
  if v == BASE then kind = 2 elseif v == FLOOR then kind = 3 end
  return resolve(v, b), kind, since, resolve(value_before, base_before), before_since
end

-- ---------------------------------------------------------------- limits

local limits, limits_held = {}, 0 -- a memory of parsed strings only; nothing of the protocol

local function size_index(value, a, b, c)
  if value < a then return 0 elseif value < b then return 1 elseif value < c then return 2 end
  return 3
end

local function region_capacity(capacity, share, regions)
  if share <= 0 or capacity <= 0 then return 0 end
  if capacity < regions then return floor(capacity * share / 10000) end
  return 1 + floor((capacity - regions) * share / 10000)
end

local function limit_of(text)
  local p = limits[text]
  if p then return p end
  local kind, capacity, a, b, charge_denied, sharing, regions, largest, base_version, base, domain =
    text:match('^(%d+) (%d+) (%d+) (%d+) (%d) (%d) (%d+) (%d+) (%d+) (%d+) (.*)$')
  if not kind then error('APPORTION a limit that cannot be read: ' .. text) end
  p = {
    window = kind == '2', capacity = tonumber(capacity), tokens = tonumber(a), period = tonumber(b),
    charge_denied = charge_denied == '1', whole = sharing == '0', adaptive = sharing == '2',
    regions = tonumber(regions), base_version = tonumber(base_version), base = tonumber(base), domain = domain,
  }
  if p.window and p.adaptive then error('APPORTION a fixed window cannot be adaptive') end
  p.window_ms = p.tokens
  p.unit = p.period * 10000
  p.largest = region_capacity(p.capacity, tonumber(largest), p.regions)
  p.head = size_index(p.capacity, 256, 65536, 16777216) * 16 + size_index(p.period, 256, 65536, 16777216) * 4
  if limits_held >= LIMITS_REMEMBERED then limits, limits_held = {}, 0 end
  limits[text], limits_held = p, limits_held + 1
  return p
end

-- ---------------------------------------------------------------- token bucket

local function nearest(stored, ms)
  local behind = (ms - stored) % 1099511627776
  if behind < 549755813888 then return ms - behind end
  return ms - behind + 1099511627776
end

local function accrued(level, elapsed, per_ms, top)
  if level >= top then return top end
  if elapsed <= 0 or per_ms == 0 then return level end
  if elapsed >= ceil((top - level) / per_ms) then return top end
  return level + elapsed * per_ms
end

-- time, level, capacity, period, share, rebased (nil: never); nil: written by a version that this one cannot read
local function unpack_bucket(state, ms)
  local format = formats[byte(state, 1)]
  if not format or lengths[byte(state, 1)] ~= #state then return nil end
  local head, time, capacity, period, level, share, rebased = unpack_fields(format, state)
  if head < 128 then return nearest(time, ms), level * 10000, capacity, period, 10000, nil end
  if head < 192 then return nearest(time, ms), level, capacity, period, share, nil end
  return nearest(time, ms), level, capacity, period, share, nearest(rebased, ms)
end

local function pack_bucket(p, time, level, share, rebased)
  local layout = 128
  if rebased then
    layout = 192
  elseif share == 10000 and level % 10000 == 0 then
    layout, level = 64, level / 10000
  end
  local head = layout + p.head + size_index(level >= 0 and level or -level - 1, 32768, 8388608, 2147483648)
  time = time % 1099511627776
  if layout == 64 then return pack(formats[head], head, time, p.capacity, p.period, level) end
  if layout == 128 then return pack(formats[head], head, time, p.capacity, p.period, level, share) end
  return pack(formats[head], head, time, p.capacity, p.period, level, share, rebased % 1099511627776)
end

local function converted(p, level, capacity, period, share)
  local used = region_capacity(capacity, share, p.regions) * period * 10000 - level
  if period ~= p.period then
    local tokens = floor(used / (period * 10000))
    used = tokens * p.unit + ceil((used - tokens * period * 10000) / period) * p.period
  end
  return max(region_capacity(p.capacity, share, p.regions) * p.unit - used, -p.capacity * p.unit)
end

-- level, top, per_ms, time, earns (what it holds when it begins to gain), ahead (how far after now that is),
-- absent_full (how long until a missing bucket would be full), rebased, unsettled
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
      level = min(top, max(v > 0 and unit or 0, accrued(0, ms - since_ms, per_ms, top)))
    end
    return level, top, per_ms, ms, 0, since_ms - ms, absent_full, nil, false
  end
  local stored, level, capacity, period, share, rebased = unpack_bucket(state, ms)
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
      stored, rebased, unsettled = ms, ms, true
    end
  end
  if not p.adaptive then
    local slower = min(share, v)
    local clip = share == v and top or min(top, region_capacity(p.capacity, slower, p.regions) * unit)
    level = accrued(level, time - stored, tokens * slower, clip)
    unsettled = unsettled or share ~= v
  elseif stored >= since_ms then
    level = accrued(level, time - stored, per_ms, top)
  else
    if stored >= before_since_ms then
      local clip = region_capacity(p.capacity, before, p.regions) * unit
      level = accrued(level, min(since_ms, time) - stored, tokens * before, clip)
    else
      level = min(level, unit)
    end
    level = accrued(min(level, top), time - since_ms, per_ms, top)
    unsettled = true
  end
  return level, top, per_ms, time, level, max(time, since_ms) - ms, absent_full, rebased, unsettled
end

local function reset_after(p, level, top, per_ms, earns, ahead)
  if p.capacity == 0 then return 0 end
  if per_ms == 0 then return SHARE_ZERO_RESET_MS end
  if level >= top then return 0 end
  return ahead + ceil((top - earns) / per_ms)
end

-- ---------------------------------------------------------------- a check: look at every rule, then write

local seen = {} -- one table a place, used again by every call
local OK, LIMITED, EXCEEDS_CAPACITY, ZERO_LIMIT = 0, 1, 2, 3

local function share_for(s, p, key, t)
  if p.adaptive then
    know_base(t, p.domain, p.base_version, p.base)
    s.share, s.kind, s.since, s.before, s.before_since = share_of(t, key, p.domain)
    s.session_left, s.consent_left = max(0, var.ends - t), max(0, var.consent - t)
  else
    s.share, s.kind = p.whole and 10000 or p.base, p.whole and 0 or 2
    s.since, s.before, s.before_since, s.session_left, s.consent_left = 0, s.share, 0, 0, 0
  end
end

local function examine(i, key, cost, p, t, ms)
  local s = seen[i]
  if not s then
    s = {}
    seen[i] = s
  end
  s.key, s.p, s.cost = key, p, cost
  share_for(s, p, key, t)
  local price, held
  if p.window then
    s.key = key .. ':' .. floor(ms / p.window_ms)
    s.left = p.window_ms - ms % p.window_ms
    local state = redis.call('GET', s.key)
    s.level = state and tonumber(state) or 0
    s.top = region_capacity(p.capacity, s.share, p.regions)
    price, held = cost, s.top - s.level
  else
    local state = redis.call('GET', key)
    s.level, s.top, s.per_ms, s.time, s.earns, s.ahead, s.absent_full, s.rebased, s.unsettled =
      look(state, p, ms, s.share, s.since, s.before, s.before_since)
    price, held = cost * p.unit, s.level
  end
  s.reason, s.costs_denied = OK, false
  if p.capacity == 0 then
    s.reason = ZERO_LIMIT
  elseif cost > p.largest then
    s.reason = EXCEEDS_CAPACITY
  elseif cost > 0 then
    s.costs_denied = p.charge_denied
    if price > held then s.reason = LIMITED end
  end
  return s.reason == OK
end

local function finish_window(s, charge, reply, n)
  local p, cost = s.p, s.cost
  if charge then
    s.level = min(s.level + cost, max(s.level, 2 * p.capacity))
    redis.call('SET', s.key, s.level, 'PX', s.left + STEP_KEPT_MS)
  end
  local retry = -1
  if s.reason == OK then
    retry = 0
  elseif s.reason == LIMITED then
    retry = cost > s.top and RETRY_FOR_LARGER_SHARE_MS or s.left
  end
  reply[n + 3], reply[n + 4], reply[n + 5] = max(0, s.top - s.level), retry, s.left
end

local function finish_bucket(s, charge, reply, n)
  local p, cost = s.p, s.cost
  if charge then
    s.level = max(s.level - cost * p.unit, -p.capacity * p.unit)
    s.earns, s.ahead = s.level, max(0, s.ahead)
  end
  local reset = reset_after(p, s.level, s.top, s.per_ms, s.earns, s.ahead)
  if charge or (cost > 0 and s.unsettled and s.reason <= LIMITED) then
    local ttl = max(1, reset, s.absent_full)
    redis.call('SET', s.key, pack_bucket(p, s.time, s.level, s.share, s.rebased), 'PX', ttl)
  end
  local retry = -1
  if s.reason == OK then
    retry = 0
  elseif s.reason == LIMITED then
    if cost * p.unit > s.top then
      retry = RETRY_FOR_LARGER_SHARE_MS
    else
      retry = s.ahead + ceil((cost * p.unit - s.earns) / s.per_ms)
    end
  end
  reply[n + 3], reply[n + 4], reply[n + 5] = max(0, floor(s.level / p.unit)), retry, reset
end

-- The same answer again; the share is told as of now, because nodes act on its time left.
local function replay(record, keys, args, t)
  local stored = cmsgpack.unpack(record)
  local reply = {}
  for i = 1, tonumber(args[1]) do
    local p, s, n, from = limit_of(args[2 * i + 1]), {}, 9 * (i - 1), 5 * (i - 1)
    share_for(s, p, keys[i], t)
    for f = 1, 5 do reply[n + f] = stored[from + f] end
    reply[n + 6], reply[n + 7], reply[n + 8], reply[n + 9] = s.share, s.kind, s.session_left, s.consent_left
  end
  return reply
end

local function check(keys, args)
  local t = enter(args)
  local ms = floor(t / 1000)
  local rules = tonumber(args[1])
  local record = keys[rules + 1]
  if record then
    local answer = redis.call('GET', record)
    if answer then return replay(answer, keys, args, t) end
  end
  local everyone, costly = true, false
  for i = 1, rules do
    local cost = tonumber(args[2 * i])
    if cost > 0 then costly = true end
    if not examine(i, keys[i], cost, limit_of(args[2 * i + 1]), t, ms) then everyone = false end
  end
  local reply, stored = {}, {}
  for i = 1, rules do
    local s, n = seen[i], 9 * (i - 1)
    local charge = s.cost > 0 and (everyone or s.costs_denied)
    local finish = s.p.window and finish_window or finish_bucket
    finish(s, charge, reply, n)
    reply[n + 1], reply[n + 2] = s.reason == OK and 1 or 0, s.reason
    reply[n + 6], reply[n + 7], reply[n + 8], reply[n + 9] = s.share, s.kind, s.session_left, s.consent_left
    if record and costly then
      for f = 1, 5 do stored[5 * (i - 1) + f] = reply[n + f] end
      redis.call('SET', keys[rules + 1 + i], charge and s.cost or 0, 'PX', RECORD_MS)
    end
  end
  if record and costly then redis.call('SET', record, cmsgpack.pack(stored), 'PX', RECORD_MS) end
  return reply
end

-- ---------------------------------------------------------------- refund

local function refund_window(s, p, key, cost, ms)
  local top = region_capacity(p.capacity, s.share, p.regions)
  key = key .. ':' .. floor(ms / p.window_ms)
  local state = redis.call('GET', key)
  if not state then return top end
  local count = max(0, tonumber(state) - cost)
  redis.call('SET', key, count, 'PX', p.window_ms - ms % p.window_ms + STEP_KEPT_MS)
  return max(0, top - count)
end

local function refund_bucket(s, p, key, cost, ms)
  local state = redis.call('GET', key)
  local level, top, per_ms, time, _, ahead, absent_full, rebased =
    look(state, p, ms, s.share, s.since, s.before, s.before_since)
  if state and p.capacity > 0 then
    level = min(top, level + min(cost, p.capacity) * p.unit)
    local ttl = max(1, reset_after(p, level, top, per_ms, level, max(0, ahead)), absent_full)
    redis.call('SET', key, pack_bucket(p, time, level, s.share, rebased), 'PX', ttl)
  end
  return max(0, floor(level / p.unit))
end

local function refund(keys, args)
  local t = enter(args)
  local ms = floor(t / 1000)
  local rules = tonumber(args[1])
  local reply, s = {}, {}
  for i = 1, rules do
    local cost, p, charge = tonumber(args[2 * i]), limit_of(args[2 * i + 1]), keys[rules + i]
    if charge then
      local left = redis.call('GET', charge)
      if left then cost = min(cost, tonumber(left)) end
      redis.call('SET', charge, 0, 'PX', RECORD_MS)
    end
    share_for(s, p, keys[i], t)
    local give = p.window and refund_window or refund_bucket
    reply[2 * i - 1], reply[2 * i] = cost, give(s, p, keys[i], cost, ms)
  end
  return reply
end

-- ---------------------------------------------------------------- nodes: touch, offer

local function forget_beats(t, older_us)
  for node, beat in pairs(var.beats) do
    if t - beat.at > older_us then
      var.beats[node] = nil
      var.beats_held = var.beats_held - 1
    end
  end
end

local function touch(keys, args)
  local t = enter(args)
  local node = args[1]
  if not var.beats[node] then
    if var.beats_held >= BEATS_MAX then forget_beats(t, CONSENT_US) end
    if var.beats_held >= BEATS_MAX then return redis.error_reply('APPORTION too many nodes') end
    var.beats_held = var.beats_held + 1
  end
  var.beats[node] = {blob = args[2], at = t}
  local young = 0
  for _, beat in pairs(var.beats) do
    if t - beat.at < BEAT_YOUNG_US then young = young + 1 end
  end
  local reply, n = {t, var.rules_version, var.base_version, young, 0}, 5
  for domain, base in pairs(var.vector) do
    reply[n + 1], reply[n + 2] = domain, base
    n = n + 2
  end
  reply[5] = (n - 5) / 2
  return reply
end

local function offer(keys, args)
  enter(args)
  local demand = var.demand
  for i = 1, #args - 1, 2 do
    local key, cost = args[i], tonumber(args[i + 1])
    local known = demand[key]
    if known then
      demand[key] = min(known + cost, EXACT)
    elseif var.demand_held < DEMAND_MAX then
      demand[key] = min(cost, EXACT)
      var.demand_held = var.demand_held + 1
    end
  end
  return {var.demand_held}
end

-- ---------------------------------------------------------------- agent: collect, write (E3), rules

local function collect(keys, args)
  local t = enter(args)
  forget_beats(t, 2 * CONSENT_US)
  local reply, n, taken = {var.rules_version, 0}, 2, 0
  for key, cost in pairs(var.demand) do
    if taken >= DEMAND_A_REPLY then break end
    reply[n + 1], reply[n + 2] = key, cost
    var.demand[key] = nil
    n, taken = n + 2, taken + 1
  end
  reply[2] = taken
  var.demand_held = var.demand_held - taken
  for _, beat in pairs(var.beats) do
    reply[n + 1], reply[n + 2] = beat.blob, t - beat.at
    n = n + 2
  end
  return reply
end

-- E2 for a lease value, at a write
local function says(value, t)
  if t < var.ends then
    if value == DEFAULT then return var.all_known and BASE or FLOOR end
    return value
  end
  return t < var.consent and FLOOR or BASE
end

-- Keys that follow what holds without a lease go, longest unchanged first; the rest keeps at most their history.
local function forget_leases()
  local idle = {}
  for key, lease in pairs(var.leases) do
    if lease.value == DEFAULT or (lease.value == BASE and var.all_known) then
      idle[#idle + 1] = {key = key, at = lease.series.at}
    end
  end
  table.sort(idle, function(a, b)
    if a.at ~= b.at then return a.at < b.at end
    return a.key < b.key
  end)
  local default = var.default
  for i = 1, min(#idle, var.leases_held - LEASES_KEPT) do
    var.leases[idle[i].key] = nil
    var.leases_held = var.leases_held - 1
    default.at = max(default.at, idle[i].at)
    default.was, default.was_at = default.v, default.at
  end
end

local function bring_to_now(s, t) s.v, s.at, s.was, s.was_at = in_force(s, t) end

local function apply(w, t)
  local new_session = w.session ~= var.session
  local steady = not new_session and t < var.ends and t < w.ends
  if not steady then
    bring_to_now(var.default, t)
    for _, lease in pairs(var.leases) do bring_to_now(lease.series, t) end
  end
  if new_session then
    var.all_known = false
    for _, lease in pairs(var.leases) do lease.value = DEFAULT end
  end
  var.session, var.version, var.ends, var.written_at = w.session, w.version, w.ends, t
  local turned_known = w.all_known and not var.all_known
  var.all_known = var.all_known or w.all_known
  if w.extend then var.consent = max(var.consent, t + CONSENT_US) end
  local touched = {}
  for i = 1, #w.keys do
    local key = w.keys[i]
    local lease = var.leases[key]
    if not lease then
      lease = {series = copy_series(var.default)}
      var.leases[key] = lease
      var.leases_held = var.leases_held + 1
    end
    lease.value = w.values[i]
    touched[i] = lease
  end
  if not steady or turned_known then
    touched = {}
    for _, lease in pairs(var.leases) do touched[#touched + 1] = lease end
    turn(var.default, says(DEFAULT, t), t)
  end
  for i = 1, #touched do turn(touched[i].series, says(touched[i].value, t), t) end
end

local function learn_bases(args, from, base_version, t)
  if base_version < var.base_version then return end
  if base_version > var.base_version then var.base_version, var.vector = base_version, {} end
  for i = from, #args - 1, 2 do
    local domain, base = args[i], tonumber(args[i + 1])
    know_base(t, domain, base_version, base)
    local known = var.vector[domain]
    if not known or base < known then var.vector[domain] = base end
  end
end

local function write(keys, args)
  local t = enter(args)
  local replid = redis.call('INFO', 'replication'):match('master_replid:(%x+)')
  if replid and var.replid ~= '' and var.replid ~= replid then born(t) end
  var.replid = replid or var.replid
  if var.instance == '' then var.instance, var.named_at = args[1], t end
  local w = {
    session = tonumber(args[3]), version = tonumber(args[4]), ends = tonumber(args[5]), extend = args[6] == '1',
    all_known = args[7] == '1', keys = {}, values = {},
  }
  local m, new = tonumber(args[9]), 0
  for i = 1, m do
    local key = args[8 + 2 * i]
    w.keys[i], w.values[i] = key, tonumber(args[9 + 2 * i])
    if not var.leases[key] then new = new + 1 end
  end
  local newer = w.session > var.session or (w.session == var.session and w.version > var.version)
  local accepted = args[2] == var.instance and w.session > 0 and newer
  if accepted and var.leases_held + new > LEASES_MAX then
    forget_leases()
    new = 0
    for i = 1, m do
      if not var.leases[w.keys[i]] then new = new + 1 end
    end
    accepted = var.leases_held + new <= LEASES_MAX
  end
  if accepted then
    apply(w, t)
    learn_bases(args, 10 + 2 * m, tonumber(args[8]), t)
  end
  return {accepted and 1 or 0, var.instance, t, t - var.named_at, w.session, w.version}
end

local function publish_rules(keys, args)
  enter(args)
  local version = tonumber(args[1])
  if version > var.rules_version then var.rules_version, var.rules_blob = version, args[2] end
  return {var.rules_version}
end

local function fetch_rules(keys, args)
  enter(args)
  return {var.rules_version, var.rules_blob}
end

-- None has the no-writes flag: a replica, whose variable and clock are not the primary's, must refuse every one.
-- A check is refused when memory is full (it creates keys); everything that keeps the shares right is not.
local function register(name, callback, flags)
  redis.register_function{function_name = 'apportion_' .. name .. '_@VERSION@', callback = callback, flags = flags}
end

register('check', check, {})
register('refund', refund, {'allow-oom'})
register('touch', touch, {'allow-oom'})
register('offer', offer, {'allow-oom'})
register('collect', collect, {'allow-oom'})
register('write', write, {'allow-oom'})
register('publish_rules', publish_rules, {'allow-oom'})
register('fetch_rules', fetch_rules, {'allow-oom'})

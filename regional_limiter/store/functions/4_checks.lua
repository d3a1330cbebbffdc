-- ---------------------------------------------------------------- a check: look at every rule, then write

local seen = {} -- one table a place, used again by every call
local OK, LIMITED, EXCEEDS_CAPACITY, ZERO_LIMIT = 0, 1, 2, 3

local function share_for(s, p, key, t)
  if p.adaptive then
    know_base(t, p.domain, p.base_version, p.base)
    s.share, s.kind, s.since, s.before, s.before_since = share_of(t, key, p.domain)
    s.session_left, s.consent_left = max(0, var.ends - t), max(0, var.consent - t)
  else
    s.share, s.kind = p.whole and @SHARE_UNITS@ or p.base, p.whole and 0 or 2
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
    s.window = floor(ms / p.window_ms)
    s.key = key .. ':' .. s.window
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
    reply[n + 1] = reply[n + 1] + 2
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
      local charged = (charge and s.cost or 0) .. ' ' .. (s.p.window and s.window or 0)
      redis.call('SET', keys[rules + 1 + i], charged, 'PX', RECORD_MS)
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
  local record = keys[rules + 1]
  local reply, s, some_back, some_kept = {}, {}, false, false
  for i = 1, rules do
    local cost, p, charge = tonumber(args[2 * i]), limit_of(args[2 * i + 1]), keys[rules + 1 + i]
    if charge and cost > 0 then
      local charged = redis.call('GET', charge)
      if charged then
        local left, window = charged:match('^(%d+) (%d+)$')
        left = tonumber(left)
        local same = not p.window or tonumber(window) == floor(ms / p.window_ms)
        cost = same and min(cost, left) or 0
        some_back, some_kept = some_back or cost > 0, some_kept or cost < left
        redis.call('SET', charge, '0 0', 'PX', RECORD_MS)
      else
        cost = 0
      end
    end
    share_for(s, p, keys[i], t)
    local give = p.window and refund_window or refund_bucket
    reply[2 * i - 1], reply[2 * i] = cost, give(s, p, keys[i], cost, ms)
  end
  -- Nothing of its charge is left: the same request must not be allowed again by what is remembered of it.
  if some_back and not some_kept then redis.call('DEL', record) end
  return reply
end

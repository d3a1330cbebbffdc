-- ---------------------------------------------------------------- a check: look at every rule, then write

local seen = {} -- one table a place, used again by every call

local function share_for(s, p, key, t)
  if p.adaptive then
    know_base(t, p.domain, p.base_version, p.base, p.floor)
    if p.kind.share then
      p.kind.share(s, p, key, t)
    else
      s.share, s.kind, s.since, s.before, s.before_since, s.floor = share_of(t, key, p.domain)
    end
    s.session_left, s.consent_left = max(0, var.ends - t), max(0, var.consent - t)
  else
    s.share, s.kind = p.whole and @SHARE_UNITS@ or p.base, p.whole and 0 or 2
    s.since, s.before, s.before_since, s.session_left, s.consent_left = 0, s.share, 0, 0, 0
  end
end

-- false: denied
local function examine(i, key, cost, p, t, ms, holder)
  local s = seen[i]
  if not s then
    s = {}
    seen[i] = s
  end
  s.key, s.p, s.cost, s.holder = key, p, cost, holder
  share_for(s, p, key, t)
  s.denies_freely = false
  local price, held = p.kind.examine(s, p, key, cost, ms)
  s.reason, s.costs_denied = OK, false
  if p.capacity == 0 then
    s.reason = ZERO_LIMIT
  elseif cost > p.largest then
    s.reason = EXCEEDS_CAPACITY
  elseif cost > 0 then
    s.costs_denied = p.charge_denied and not s.denies_freely
    if price > held then s.reason = LIMITED end
  end
  return s.reason == OK
end

-- A record's value is ASKED and what was answered, the last number of which is its TURN; or a TURN alone, once nothing
-- of its charge is left: the same request must not be allowed again by what is remembered of it, but be decided anew.
local function turn_of(answer)
  if #answer < ASKED_BYTES then return tonumber(answer), nil end
  local stored = cmsgpack.unpack(answer:sub(ASKED_BYTES + 1))
  return stored[#stored], stored
end

local function forget(record)
  local answer = redis.call('GET', record)
  if answer then redis.call('SET', record, (turn_of(answer)), 'PX', RECORD_MS) end
end

-- The same answer again; the share is told as of now, because nodes act on its time left.
local function replay(record, answer, keys, args, t)
  local turn, stored = turn_of(answer)
  turn = turn + 1
  local reply = {}
  for i = 1, tonumber(args[1]) do
    local p, s, n, from = limit_of(args[2 * i + 1]), {}, 9 * (i - 1), 5 * (i - 1)
    share_for(s, p, keys[i], t)
    for f = 1, 5 do reply[n + f] = stored[from + f] end
    reply[n + 1] = reply[n + 1] + 2 + 4 * turn
    reply[n + 6], reply[n + 7], reply[n + 8], reply[n + 9] = s.share, s.kind, s.session_left, s.consent_left
  end
  -- Last, since a share may be one of another window than the call names: nothing is written by then.
  stored[#stored] = turn
  redis.call('SET', record, answer:sub(1, ASKED_BYTES) .. cmsgpack.pack(stored), 'KEEPTTL')
  return reply
end

local function check(keys, args)
  local t = enter(args)
  local ms = floor(t / 1000)
  local rules = tonumber(args[1])
  local record, turn = keys[rules + 1], 0
  if record then
    local answer = redis.call('GET', record)
    if answer and #answer >= ASKED_BYTES then
      if answer:sub(1, ASKED_BYTES) ~= args[#args] then return {-1} end
      return replay(record, answer, keys, args, t)
    end
    if answer then turn = turn_of(answer) + 1 end
  end
  local everyone, costly, more = true, false, 2 * rules + 1
  for i = 1, rules do
    local cost, p, holder = tonumber(args[2 * i]), limit_of(args[2 * i + 1]), nil
    if p.kind.holder then
      more = more + 1
      holder = args[more]
    end
    if cost > 0 then costly = true end
    if not examine(i, keys[i], cost, p, t, ms, holder) then everyone = false end
  end
  local brief = everyone and not record
  for i = 1, rules do
    local s = seen[i]
    local p = s.p
    s.charge = s.cost > 0 and (everyone or s.costs_denied)
    s.remaining, s.wait, s.reset = p.kind.finish(s, p, s.charge)
    if s.reason > LIMITED then s.wait = -1 end
    if s.charge and p.was_allowed and s.reason == LIMITED then s.reason, s.wait = OK, 0 end
    if s.wait ~= 0 or not p.whole then brief = false end
  end
  local reply, stored = {}, {}
  if brief then
    for i = 1, rules do
      local s = seen[i]
      reply[2 * i - 1], reply[2 * i] = -1 - s.remaining, s.reset
    end
    return reply
  end
  for i = 1, rules do
    local s, n = seen[i], 9 * (i - 1)
    local p = s.p
    reply[n + 1], reply[n + 2], reply[n + 3], reply[n + 4], reply[n + 5] =
      s.reason == OK and 1 or 0, s.reason, s.remaining, s.wait, s.reset
    reply[n + 6], reply[n + 7], reply[n + 8], reply[n + 9] = s.share, s.kind, s.session_left, s.consent_left
    if record and costly then
      for f = 1, 5 do stored[5 * (i - 1) + f] = reply[n + f] end
      reply[n + 1] = reply[n + 1] + 4 * turn
      local charged = (s.charge and s.cost or 0) .. ' ' .. (p.kind.window and p.kind.window(p, ms) or 0)
      redis.call('SET', keys[rules + 1 + i], charged, 'PX', RECORD_MS)
    end
  end
  if record and costly then
    stored[5 * rules + 1] = turn
    redis.call('SET', record, args[#args] .. cmsgpack.pack(stored), 'PX', RECORD_MS)
  end
  return reply
end

-- ---------------------------------------------------------------- refund

local function refund(keys, args)
  local t = enter(args)
  local ms = floor(t / 1000)
  local rules = tonumber(args[1])
  local record = keys[rules + 1]
  local turn = record and tonumber(args[#args])
  if turn then
    local answer = redis.call('GET', record)
    if not answer or #answer < ASKED_BYTES or turn_of(answer) ~= turn then return {} end
  end
  local reply, s, windows, more = {}, {}, {}, 2 * rules + 1
  -- First, since it may find that the call cannot be decided: nothing is written by then.
  for i = 1, rules do
    local p = limit_of(args[2 * i + 1])
    windows[i] = p.kind.window and p.kind.window(p, ms) or 0
    if p.kind.named then p.kind.named(p, keys[i], ms) end
  end
  local some_back, some_kept = false, false
  for i = 1, rules do
    local cost, p, charge = tonumber(args[2 * i]), limit_of(args[2 * i + 1]), keys[rules + 1 + i]
    if charge and cost > 0 then
      local charged = redis.call('GET', charge)
      if charged then
        local left, window = charged:match('^(%d+) (%d+)$')
        left = tonumber(left)
        window = tonumber(window)
        local reached = window == windows[i]
        if p.kind.reaches then reached = p.kind.reaches(p, window, windows[i]) end
        cost = reached and min(cost, left) or 0
        some_back, some_kept = some_back or cost > 0, some_kept or cost < left
        redis.call('SET', charge, '0 0', 'PX', RECORD_MS)
      else
        cost = 0
      end
    end
    s.holder = nil
    if p.kind.holder then
      more = more + 1
      s.holder = args[more]
    end
    share_for(s, p, keys[i], t)
    reply[2 * i - 1], reply[2 * i] = cost, p.kind.give_back(s, p, keys[i], cost, ms)
  end
  if some_back and not some_kept then forget(record) end
  return reply
end

-- ---------------------------------------------------------------- renew

local function renew(keys, args)
  local t = enter(args) -- before anything else: it brings the standard functions
  local ms = floor(t / 1000)
  local rules = tonumber(args[1])
  local reply, s = {}, {}
  for i = 1, rules do
    if not limit_of(args[2 * i + 1]).kind.renew then error('APPORTION a kind without leases') end
  end
  for i = 1, rules do
    local p = limit_of(args[2 * i + 1])
    s.holder = args[2 * rules + 1 + i]
    reply[i] = p.kind.renew(s, p, keys[i], ms) and 1 or 0
  end
  return reply
end

-- ---------------------------------------------------------------- release

local function release(keys, args)
  local t = enter(args) -- before anything else: it brings the standard functions
  local ms = floor(t / 1000)
  local rules = tonumber(args[1])
  local reply, s, more = {}, {}, 2 * rules + 1
  for i = 1, rules do
    local p = limit_of(args[2 * i + 1])
    reply[i] = 0
    if p.kind.holder then
      more = more + 1
      s.holder = args[more]
      if p.kind.release(s, p, keys[i], ms) then reply[i] = 1 end
    end
  end
  forget(keys[rules + 1])
  return reply
end

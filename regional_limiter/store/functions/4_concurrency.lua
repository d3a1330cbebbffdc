-- ---------------------------------------------------------------- concurrency
-- regional_limiter/algorithms/concurrency.py has what is kept.  A sorted set, since how many slots are held now and
-- which ends when are then found at the same cost however many there are.  A slot is a member of 13 bytes with the end
-- of its lease as score; the members of one byte are no slots: t the latest time, o the offset, r when it was rebased,
-- each with its negative as score, so they come first.

local SLOTS_A_HOLDER = @SLOTS_A_HOLDER@

local concurrency = {holder = true}

function concurrency.parse(p, numbers)
  p.lease_ms = numbers[1]
  p.largest = min(p.largest, SLOTS_A_HOLDER)
  p.charge_denied = false -- a denied check has no holder
end

local function slot(s, number)
  return s.holder .. string.char(number)
end

-- s.clock (now in the state's time), s.time, s.offset, s.rebased, s.heads (members that are no slots), s.used,
-- s.mine (how many the holder has), s.mine_end, s.unsettled
local function look_at_slots(s, p, key, ms)
  s.key, s.offset, s.rebased, s.heads, s.unsettled, s.mine = key, 0, nil, 1, false, 0
  local latest, offset, rebased, first = unpack(redis.call('ZMSCORE', s.key, 't', 'o', 'r', slot(s, 0)))
  if not latest then
    s.clock, s.time, s.used, s.heads = ms, ms, 0, 0
    return
  end
  latest = -latest
  if offset then s.offset, s.rebased, s.heads = -offset, -rebased, 3 end
  s.clock = ms + s.offset
  if latest - s.clock > STEP_KEPT_MS and not (s.rebased and abs(ms - s.rebased) < REBASE_EVERY_MS) then
    s.offset, s.rebased, s.clock, s.unsettled = s.offset + latest - s.clock, ms, latest, true
  end
  s.time = max(s.clock, latest)
  s.used = redis.call('ZCOUNT', s.key, '(' .. s.time, '+inf')
  local score = tonumber(first or 0)
  s.mine_end = score
  while score > s.time do
    s.mine = s.mine + 1
    score = tonumber(redis.call('ZSCORE', s.key, slot(s, s.mine)) or 0)
  end
end

local function last_end(s)
  return tonumber(redis.call('ZRANGE', s.key, -1, -1, 'WITHSCORES')[2] or 0)
end

local function slots_reset(s)
  return s.used > 0 and last_end(s) - s.clock or 0
end

-- Writes what is not a slot, and how long all of it lives.
local function store_heads(s)
  redis.call('ZADD', s.key, -s.time, 't')
  s.heads = 1
  if s.rebased then
    redis.call('ZADD', s.key, -s.offset, 'o', -s.rebased, 'r')
    s.heads = 3
  end
  local reset = slots_reset(s)
  redis.call('PEXPIRE', s.key, max(1, reset))
  return reset
end

local function lease_slots(s, p, count)
  local ending, changes = s.time + p.lease_ms, {}
  for number = 0, count - 1 do
    changes[2 * number + 1], changes[2 * number + 2] = ending, slot(s, number)
  end
  redis.call('ZADD', s.key, unpack(changes))
end

function concurrency.examine(s, p, key, cost, ms)
  look_at_slots(s, p, key, ms)
  s.missing = max(0, cost - s.mine)
  return s.missing, max(0, p.part - s.used)
end

-- When so many slots of others are free.
local function others_end(s, short)
  local over = redis.call('ZCARD', s.key) - s.heads - s.used
  local function end_at(place)
    place = s.heads + over + place
    return tonumber(redis.call('ZRANGE', s.key, place, place, 'WITHSCORES')[2])
  end
  local ending = end_at(short - 1)
  if s.mine == 0 or s.mine_end > ending then return ending end
  return end_at(short - 1 + s.mine)
end

function concurrency.finish(s, p, charge)
  local wait, reset = 0, nil
  if s.reason == LIMITED then
    if s.cost > p.part then
      wait = RETRY_FOR_LARGER_SHARE_MS
    else
      wait = others_end(s, s.missing - p.part + s.used) - s.clock
    end
  end
  if charge then
    wait = -s.mine -- what its holder had before: not to be given back when another rule denies
    s.used = s.used + s.missing
    lease_slots(s, p, s.mine + s.missing)
    reset = store_heads(s)
    local over = redis.call('ZCARD', s.key) - s.heads - s.used
    if over > 0 then redis.call('ZREMRANGEBYRANK', s.key, s.heads, s.heads + min(over, @TRIM_MOST@) - 1) end
  elseif s.unsettled and s.cost > 0 and s.reason <= LIMITED then
    reset = store_heads(s)
  else
    reset = slots_reset(s)
  end
  return max(0, p.part - s.used), wait, reset
end

local function free_slots(s)
  local gone = {}
  for number = 0, s.mine - 1 do gone[number + 1] = slot(s, number) end
  redis.call('ZREM', s.key, unpack(gone))
  s.used = s.used - s.mine
  store_heads(s)
end

function concurrency.give_back(s, p, key, cost, ms)
  look_at_slots(s, p, key, ms)
  if cost > 0 and s.mine > 0 then free_slots(s) end
  return max(0, p.part - s.used)
end

-- -> whether the holder held anything that is free now
function concurrency.release(s, p, key, ms)
  look_at_slots(s, p, key, ms)
  if s.mine == 0 then return false end
  free_slots(s)
  return true
end

-- -> whether the holder still held what it has a new lease for now
function concurrency.renew(s, p, key, ms)
  look_at_slots(s, p, key, ms)
  if s.mine == 0 then return false end
  lease_slots(s, p, s.mine)
  store_heads(s)
  return true
end

kinds['7'] = concurrency

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
    if var.beats_held >= BEATS_MOST then forget_beats(t, CONSENT_US) end
    if var.beats_held >= BEATS_MOST then return redis.error_reply('APPORTION too many nodes') end
    var.beats_held = var.beats_held + 1
  end
  var.beats[node] = {blob = args[2], at = t}
  local young = 0
  for _, beat in pairs(var.beats) do
    if t - beat.at < BEAT_YOUNG_US then young = young + 1 end
  end
  local reply, n = {t, var.rules_version, var.base_version, young, max(0, var.consent - t), 0}, 6
  for domain, base in pairs(var.vector) do
    reply[n + 1], reply[n + 2] = domain, base
    n = n + 2
  end
  reply[6] = (n - 6) / 2
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
    elseif var.demand_held < DEMAND_MOST then
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

-- The floors that sets name stand among the bases, under DOMAIN#floor
local function learn_bases(args, from, base_version, t)
  if base_version < var.base_version then return end
  if base_version > var.base_version then var.base_version, var.vector = base_version, {} end
  local told = {}
  for i = from, #args - 1, 2 do
    local name, number = args[i], tonumber(args[i + 1])
    told[name] = number
    local known = var.vector[name]
    if not known or number < known then var.vector[name] = number end
  end
  for name, base in pairs(told) do
    if not name:find('#', 1, true) then know_base(t, name, base_version, base, told[name .. '#floor'] or 0) end
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
  if accepted and var.leases_held + new > LEASES_MOST then
    forget_leases()
    new = 0
    for i = 1, m do
      if not var.leases[w.keys[i]] then new = new + 1 end
    end
    accepted = var.leases_held + new <= LEASES_MOST
  end
  if accepted then
    apply(w, t)
    learn_bases(args, 10 + 2 * m, tonumber(args[8]), t)
  end
  local reply = {accepted and 1 or 0, var.instance, t, t - var.named_at, w.session, w.version}
  if accepted then
    for i = 1, m do
      if rests(t, w.keys[i]) then reply[#reply + 1] = w.keys[i] end
    end
  end
  return reply
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
register('renew', renew, {'allow-oom'})
register('release', release, {'allow-oom'})
register('lease', lease, {'allow-oom'})
register('touch', touch, {'allow-oom'})
register('offer', offer, {'allow-oom'})
register('collect', collect, {'allow-oom'})
register('write', write, {'allow-oom'})
register('windows', windows, {'allow-oom'})
register('publish_rules', publish_rules, {'allow-oom'})
register('fetch_rules', fetch_rules, {'allow-oom'})

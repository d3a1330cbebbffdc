-- ---------------------------------------------------------------- windows in escrow

-- The base by which the static part of a window is reckoned that began at `at`: as it is, if the agent vouches for
-- that; else the least in force at any time since then, or 0 where that is not known here
local function base_of_window(domain, at)
  local known = var.bases[domain]
  if not known then return 0 end
  local since_ms = known.version == var.vouched_version and var.vouched[domain]
  if since_ms and since_ms * 1000 <= at then return known.series.v end
  local least, held = known.series.v, known.held
  for i = #held, 1, -1 do
    if held[i].base < least then least = held[i].base end
    if held[i].at <= at then return least end
  end
  return 0
end

-- total, before (in share units): what was granted of the window, and what of it before this variable began
local function granted_of(key, window)
  local rows = var.granted[key]
  if rows then
    for i = 1, #rows do
      if rows[i].window == window then return rows[i].total, rows[i].before end
    end
  end
  return 0, 0
end

-- Of a window that began at start_us: share, kind, what counts as used where no count is stored, and what was granted
local function window_share(key, domain, window, start_us)
  local static = floor(base_of_window(domain, start_us) * @WINDOW_STATIC_PER_MILLE@ / 1000)
  local total, before = granted_of(key, window)
  local young = var.born > start_us - GAP_US
  return static + total, total > 0 and 1 or 2, young and static + before or 0, total
end

local function forget_ended(ms)
  for key, rows in pairs(var.granted) do
    local ended = true
    for i = 1, #rows do
      if rows[i].end_ms > ms then ended = false end
    end
    if ended then
      var.granted[key] = nil
      var.granted_held = var.granted_held - 1
    end
  end
end

local function grant_window(key, new)
  local rows = var.granted[key]
  if not rows then
    rows = {}
    var.granted[key] = rows
    var.granted_held = var.granted_held + 1
  end
  for i = 1, #rows do
    local row = rows[i]
    if row.window == new.window then
      row.total, row.before = max(row.total, new.total), min(row.before, new.before)
      return
    end
  end
  local place = #rows + 1
  if place > @WINDOWS_A_KEY@ then
    place = 1
    for i = 2, #rows do
      if rows[i].end_ms < rows[place].end_ms then place = i end
    end
    if new.end_ms < rows[place].end_ms then return end
  end
  rows[place] = new
end

local function note_use(key, window, end_ms, used, offered, part, granted, capacity, regions)
  local known = var.uses[key]
  if known and known[1] == window then
    offered = offered + known[4]
  elseif not known then
    if var.uses_held >= @USES_MOST@ then return end
    var.uses_held = var.uses_held + 1
  end
  var.uses[key] = {window, end_ms, used, offered, part, granted, capacity, regions}
end

local function windows(keys, args)
  local t = enter(args)
  local ms = floor(t / 1000)
  local reply, n = {var.instance, t}, 2
  local base_version, domains = tonumber(args[2]), tonumber(args[3])
  if base_version >= var.vouched_version then
    var.vouched_version, var.vouched = base_version, {}
    for i = 1, domains do var.vouched[args[2 + 2 * i]] = tonumber(args[3 + 2 * i]) end
  end
  if var.instance ~= '' and args[1] == var.instance then
    for i = 4 + 2 * domains, #args - 4, 5 do
      local key = args[i]
      if not var.granted[key] and var.granted_held >= @WINDOW_KEYS_MOST@ then forget_ended(ms) end
      if var.granted[key] or var.granted_held < @WINDOW_KEYS_MOST@ then
        grant_window(key, {
          window = tonumber(args[i + 1]), end_ms = tonumber(args[i + 2]),
          total = tonumber(args[i + 3]), before = tonumber(args[i + 4]),
        })
      end
    end
  end
  for key, use in pairs(var.uses) do
    reply[n + 1] = key
    for f = 1, 8 do reply[n + 1 + f] = use[f] end
    n = n + 9
  end
  var.uses, var.uses_held = {}, 0
  return reply
end

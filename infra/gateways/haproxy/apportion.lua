-- Asks a node of Apportion whether a request may pass: docs/gateways.md.
--
--   http-request lua.apportion "QUERY"
--
-- QUERY is that of /v1/authorize (domain, cost, resource, attributes.NAME).  Sets txn.apportion_status
-- (200: may pass; 400 and above: may not; 0: nobody answered) and, where the node said them, txn.apportion_body and
-- the headers below, each by its name in small letters with underscores.

local NODES = "http://127.0.0.1:8189"   -- the listener in haproxy.cfg that looks after the nodes
local TOKEN = nil                       -- the token of check_api, if it has one
local ANSWER_WITHIN_MS = 150            -- connections that are tried again included

local HEADERS = {
    "retry-after", "ratelimit-policy", "ratelimit", "x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset",
}

core.register_action("apportion", { "http-req" }, function(txn, query)
    local question = {
        ["x-forwarded-for"] = { txn.sf:src() },
        ["x-forwarded-host"] = { txn.sf:req_hdr("host") },
        ["x-forwarded-method"] = { txn.sf:method() },
        ["x-forwarded-uri"] = { txn.sf:pathq() },
        -- Sources of your own (check_api.authorize.client_key) go here, for example:
        -- ["x-api-key"] = { txn.sf:req_hdr("x-api-key") },
    }
    if TOKEN then question["x-apportion-token"] = { TOKEN } end
    local address = NODES .. "/v1/authorize?" .. query

    local answer = core.httpclient():get({ url = address, headers = question, timeout = ANSWER_WITHIN_MS })
    local status = answer and answer.status or 0
    local said = status == 200 or (answer and answer.headers["x-apportion-status"] ~= nil)
    if not said then
        -- Also what the listener says when there is no node, and what a node says that is not a decision.
        txn:set_var("txn.apportion_status", 0)
        return
    end
    txn:set_var("txn.apportion_status", status)
    if status ~= 200 then txn:set_var("txn.apportion_body", answer.body) end
    for _, name in ipairs(HEADERS) do
        local values = answer.headers[name]
        if values ~= nil then txn:set_var("txn.apportion_" .. name:gsub("-", "_"), values[0]) end
    end
end, 1)

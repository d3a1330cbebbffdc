"""Which tests hold the right value of each public report: in this folder, or beside the part that they are about.

``test_reports.py`` sees to it that each of them is there.
"""

from __future__ import annotations

from typing import Final

_DECISIONS = "tests/regressions/test_decisions.py"
_NODES = "tests/regressions/test_nodes_and_identities.py"
_SHARES = "tests/regressions/test_shares.py"
_WINDOWS = "tests/regressions/test_sliding_windows_and_slots.py"
_CLUSTER = "tests/contract/test_redis_cluster_store.py"
_FAULTS = "tests/contract/test_redis_cluster_faults.py"
_STORES = "tests/contract/test_stores.py"
_USAGE = "tests/unit/test_node_usage.py"
_AUTHORIZE = "tests/unit/check_api/test_authorize.py"
_APP = "tests/unit/check_api/test_app.py"

REPORTS: Final[dict[str, tuple[tuple[str, str], ...]]] = {
    # ---- shares
    "BerriAI/litellm#41221": (
        (_DECISIONS, "test_litellm_41221_a_static_split_holds_whatever_becomes_of_the_link"),
        (
            "tests/unit/test_static_parts.py",
            "test_litellm_41221_parts_of_a_static_window_sum_to_the_limit_in_any_order",
        ),
    ),
    "unkeyed/unkey#6461": ((_SHARES, "test_unkey_6461_small_regions_count_as_well_as_large_ones"),),
    "mailgun/kafka-pixy#62": ((_USAGE, "test_kafka_pixy_62_an_older_beat_that_comes_later_takes_nothing_back"),),
    "ClickHouse/ClickHouse#7259": ((_USAGE, "test_clickhouse_7259_a_repeated_beat_counts_once"),),
    "haproxy/haproxy#1497": ((_USAGE, "test_haproxy_1497_a_restarted_node_adds_to_what_its_last_life_counted"),),
    "mailgun/gubernator, global.go": (
        (_NODES, "test_gubernator_global_go_what_was_allowed_since_the_last_beat_is_told_before_a_node_ends"),
        (_NODES, "test_gubernator_global_go_what_was_decided_without_the_store_is_charged_before_a_node_ends"),
    ),
    "youtube/doorman": (
        (_SHARES, "test_youtube_doorman_growth_waits_while_the_shrink_of_another_may_be_lost"),
        (_SHARES, "test_youtube_doorman_growth_follows_the_acknowledgement_of_a_shrink_that_was_late"),
    ),
    # ---- the store
    "alisaifee/limits#14": (
        (_DECISIONS, "test_alisaifee_limits_14_a_count_and_its_end_are_written_in_one_step"),
        (_NODES, "test_alisaifee_limits_14_a_key_that_is_found_without_an_end_gets_one"),
    ),
    "spring-cloud/spring-cloud-gateway#2453": (
        (_DECISIONS, "test_spring_cloud_gateway_2453_a_wait_is_rounded_up"),
    ),
    "spring-cloud/spring-cloud-gateway#248": (
        (_CLUSTER, "test_spring_cloud_gateway_248_two_rules_of_one_client_whose_keys_hash_apart"),
    ),
    "vutran1710/PyrateLimiter#182": (
        (_CLUSTER, "test_pyratelimiter_182_lost_functions_cost_no_answer_and_no_second_charge"),
    ),
    "envoyproxy/ratelimit#1191": (
        (_FAULTS, "test_ratelimit_1191_a_demoted_primary_is_left_although_its_sockets_stay_open"),
    ),
    "letsencrypt/boulder#7780": (
        (_NODES, "test_letsencrypt_boulder_7780_a_hundred_at_once_on_a_new_key_through_a_node_get_ten"),
        (_STORES, "test_letsencrypt_boulder_7780_100_at_once_on_a_new_key_get_exactly_10"),
    ),
    "express-rate-limit/rate-limit-redis#251": (
        (_DECISIONS, "test_express_rate_limit_redis_251_a_request_that_comes_again_is_charged_once"),
        (_WINDOWS, "test_express_rate_limit_251_a_request_whose_answer_was_lost_is_charged_once"),
        (_STORES, "test_rate_limit_redis_251_a_request_that_is_sent_again_is_charged_once"),
    ),
    "mailgun/gubernator#208": (
        (
            "tests/unit/test_token_lease.py",
            "test_gubernator_208_a_holder_that_dies_holds_back_its_lease_for_its_life",
        ),
        (_STORES, "test_kill_9_of_a_holder_holds_back_its_lease_for_its_life_and_no_longer"),
    ),
    # ---- decisions
    "uber-go/ratelimit#119": (
        (_DECISIONS, "test_uber_go_ratelimit_119_idle_time_is_no_credit_above_the_capacity"),
    ),
    "redis/redis#14826": (
        (_DECISIONS, "test_redis_14826_a_huge_cost_is_refused_and_changes_nothing"),
        (
            "tests/unit/rules/test_parse_rules.py",
            "test_redis_14826_a_rule_beyond_exact_arithmetic_is_refused_at_load",
        ),
    ),
    "spring-cloud/spring-cloud-gateway#168": (
        (_DECISIONS, "test_spring_cloud_gateway_168_and_new_api_1026_a_limit_of_zero_denies"),
        (_NODES, "test_spring_cloud_gateway_168_and_new_api_1026_a_limit_of_zero_denies_without_the_store"),
        (_NODES, "test_spring_cloud_gateway_168_and_new_api_1026_a_limit_of_zero_denies_through_a_node"),
        (_WINDOWS, "test_spring_cloud_gateway_168_limit_0_denies_whatever_the_kind"),
    ),
    "QuantumNous/new-api#1026": (
        (_DECISIONS, "test_spring_cloud_gateway_168_and_new_api_1026_a_limit_of_zero_denies"),
    ),
    "mailgun/gubernator#156": (
        (_DECISIONS, "test_mailgun_gubernator_156_and_gkit_133_a_refund_never_lifts_a_bucket_above_its_capacity"),
        (_APP, "test_mailgun_gubernator_156_a_negative_cost_is_422_and_never_reaches_the_limiter"),
    ),
    "songzhibin97/gkit#133": (
        (_DECISIONS, "test_mailgun_gubernator_156_and_gkit_133_a_refund_never_lifts_a_bucket_above_its_capacity"),
    ),
    "long2ice/fastapi-limiter#41": (
        (_DECISIONS, "test_long2ice_fastapi_limiter_41_two_routes_have_two_buckets"),
        (_NODES, "test_long2ice_fastapi_limiter_41_each_route_with_a_parameter_has_its_own_bucket"),
    ),
    "CityOfNewYork/ACCESS-NYC#517": ((_NODES, "test_access_nyc_517_no_two_identities_meet_in_one_bucket"),),
    "apache/apisix#12823": (
        (_WINDOWS, "test_apache_apisix_12823_a_killed_nodes_slots_come_back_and_two_releases_free_one"),
        (
            "tests/unit/check_api/test_slots.py",
            "test_apache_apisix_12823_slots_of_a_killed_caller_come_back_and_two_releases_free_one",
        ),
    ),
    "envoyproxy/ratelimit#1060": (
        (_DECISIONS, "test_envoyproxy_ratelimit_1060_what_one_rule_denied_is_not_charged_to_another"),
    ),
    "envoyproxy/ratelimit#185": (
        (_DECISIONS, "test_envoyproxy_ratelimit_185_a_raised_limit_keeps_what_was_used"),
        (_WINDOWS, "test_envoyproxy_ratelimit_185_a_raised_limit_keeps_what_was_used"),
    ),
    "alibaba/Sentinel#1965": (
        (_DECISIONS, "test_alibaba_sentinel_1965_lowered_and_raised_again_gives_back_what_was_not_used"),
        (_WINDOWS, "test_alibaba_sentinel_1965_a_lowered_limit_that_is_raised_again_counts_on"),
    ),
    "envoyproxy/ratelimit#1077": (
        (_DECISIONS, "test_envoyproxy_ratelimit_1077_a_denial_does_not_outlive_a_raised_limit"),
    ),
    "yiisoft/yii2#17237": ((_DECISIONS, "test_yiisoft_yii2_17237_the_fraction_of_a_token_is_kept"),),
    "apache/shenyu#6754": ((_WINDOWS, "test_apache_shenyu_6754_what_left_the_window_no_longer_counts"),),
    "Kong/kong#9581": (
        ("tests/unit/test_calendar.py", "test_kong_9581_twelve_months_and_as_many_days_as_the_year_has"),
    ),
    "envoyproxy/ratelimit#1206": (
        ("tests/unit/test_calendar.py", "test_kong_9581_twelve_months_and_as_many_days_as_the_year_has"),
        ("tests/unit/test_calendar.py", "test_lengths"),
    ),
    "Kong/kong#14995": (
        (_DECISIONS, "test_kong_14995_every_key_has_an_end"),
        (_WINDOWS, "test_kong_14995_every_key_has_an_end_within_two_windows"),
    ),
    "laravel/framework#10600": (
        (_DECISIONS, "test_laravel_framework_10600_remaining_counts_the_check_itself"),
        (_WINDOWS, "test_laravel_framework_10600_neither_one_too_few_nor_one_too_many"),
    ),
    # ---- identity, rules, tables
    "fastify/fastify-rate-limit#7": (
        (
            _AUTHORIZE,
            "test_fastify_rate_limit_7_and_express_rate_limit_502_addresses_count_as_they_can_be_believed",
        ),
    ),
    "express-rate-limit/express-rate-limit#502": (
        (
            _AUTHORIZE,
            "test_fastify_rate_limit_7_and_express_rate_limit_502_addresses_count_as_they_can_be_believed",
        ),
        (
            "tests/unit/test_planner.py",
            "test_express_rate_limit_502_addresses_of_one_network_are_one_bucket_and_mapped_ones_are_ipv4",
        ),
    ),
    "kgateway-dev/kgateway#2832": (
        ("tests/unit/rules/test_parse_rules.py", "test_kgateway_2832_a_duplicate_id_refuses_the_whole_set"),
        ("tests/unit/test_limiter.py", "test_kgateway_2832_a_refused_set_leaves_the_old_one_in_force"),
        ("tests/unit/test_limiter.py", "test_kgateway_2832_a_cold_start_with_only_a_bad_set_is_not_ready"),
    ),
    "better-auth/better-auth#7161": (
        (_NODES, "test_better_auth_7161_a_table_of_many_keys_stays_below_its_bound_and_forgives_none"),
        (_DECISIONS, "test_better_auth_7161_a_peek_makes_nothing_and_a_window_that_is_over_is_gone"),
    ),
    "envoyproxy/ratelimit#1132": (
        (
            "tests/unit/check_api/test_metrics.py",
            "test_envoyproxy_ratelimit_1132_many_users_leave_the_series_unchanged",
        ),
    ),
    "jsocol/django-ratelimit#3": (
        ("tests/unit/check_api/test_bodies.py", "test_jsocol_django_ratelimit_3_odd_keys_are_plain_keys"),
        (_APP, "test_jsocol_django_ratelimit_3_a_key_of_10_kb_is_422"),
    ),
    "fastify/fastify-rate-limit#301": (
        (_DECISIONS, "test_fastify_rate_limit_301_and_apisix_9964_the_wait_is_until_the_windows_end"),
    ),
    "apache/apisix#9964": (
        (_DECISIONS, "test_fastify_rate_limit_301_and_apisix_9964_the_wait_is_until_the_windows_end"),
    ),
    "brandur/redis-cell#56": ((_DECISIONS, "test_brandur_redis_cell_56_the_wait_named_is_the_wait_needed"),),
}

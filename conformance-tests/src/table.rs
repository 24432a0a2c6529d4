//! The table of cases. Every backend runs all of them: a skip has a reason that is checked in.

use crate::Need::{Admin, ContextClock, Fault as Hook, Fenced, KeepFor, OwnStore, TtlChange, ValueTokens};
use crate::case::cases;
use crate::cases::{
    admin, bounds, cancel, clock, config, expiry, fault, fence, history, model, mutex, name, release, renew,
    wait,
};
use crate::{Case, Fault};

/// Every case, with what it needs and the planted defects that prove it.
#[rustfmt::skip]
pub const CASES: &[Case] = cases! {
    "mutex/second_holder_is_refused" needs [] proven_by [GrantsTwice]
        => mutex::second_holder_is_refused;
    "mutex/client_is_refused_beside_a_lease" needs [] proven_by [GrantsTwice]
        => mutex::client_is_refused_beside_a_lease;
    "mutex/refusal_tells_who_and_how_long" needs [] proven_by [RefusalTellsNothing, InspectLeaksOwner, InspectOverstatesRemaining]
        => mutex::refusal_tells_who_and_how_long;
    "mutex/racing_tasks_are_inside_one_by_one" needs [] proven_by [GrantsOnRace, GrantsTwice, ReleasedTokenForgotten, StuckToken]
        => mutex::racing_tasks_are_inside_one_by_one;
    "mutex/rival_with_a_shorter_ttl_does_not_steal" needs [] proven_by [ShorterTtlSteals]
        => mutex::rival_with_a_shorter_ttl_does_not_steal;
    "mutex/same_owner_gets_the_same_token" needs [] proven_by [ReacquireNewToken]
        => mutex::same_owner_gets_the_same_token;
    "mutex/refused_try_leaves_nothing" needs [] proven_by [RefusedTryLeavesTrace]
        => mutex::refused_try_leaves_nothing;

    "fence/token_strictly_increases" needs [] proven_by [StuckToken, ReleasedTokenForgotten]
        => fence::token_strictly_increases;
    "fence/token_survives_a_reconnect" needs [] proven_by [StuckToken, ReleasedTokenForgotten]
        => fence::token_survives_a_reconnect;
    "fence/token_is_not_below_the_wall_clock" needs [ValueTokens] proven_by [TokenWithoutClock]
        => fence::token_is_not_below_the_wall_clock;
    "fence/grant_exceeds_its_floor" needs [ValueTokens] proven_by [TokenFloorIgnored]
        => fence::grant_exceeds_its_floor;
    "fence/repeated_acquire_honours_a_floor" needs [ValueTokens] proven_by [RepeatedFloorIgnored]
        => fence::repeated_acquire_honours_a_floor;
    "fence/renewal_honours_a_floor" needs [ValueTokens] proven_by [RenewFloorIgnored]
        => fence::renewal_honours_a_floor;
    "fence/renewal_keeps_the_token" needs [] proven_by [RenewChangesToken]
        => fence::renewal_keeps_the_token;
    "fence/regressed_token_is_not_accepted" needs [] proven_by [RegressionUnnoticed]
        => fence::regressed_token_is_not_accepted;
    "fence/resource_refuses_a_lower_token" needs [Fenced] proven_by [FenceAcceptsLower, FenceRefusesEqual]
        => fence::resource_refuses_a_lower_token;
    "fence/stale_writer_changes_nothing" needs [Fenced] proven_by [FenceAcceptsLower]
        => fence::stale_writer_changes_nothing;
    "fence/purge_keeps_the_mark" needs [Fenced] proven_by [PurgeForgetsMark]
        => fence::purge_keeps_the_mark;

    "expiry/grant_runs_out_on_time" needs [] proven_by [ExpiryNeverFires, ExpiryTooEarly, ExpiryInWholeSeconds]
        => expiry::grant_runs_out_on_time;
    "expiry/expired_grant_is_not_shown" needs [] proven_by [ExpiryNeverFires]
        => expiry::expired_grant_is_not_shown;
    "expiry/own_expired_grant_is_a_new_one" needs [] proven_by [OwnExpiredKeepsToken]
        => expiry::own_expired_grant_is_a_new_one;
    "expiry/grant_promises_no_more_than_the_store" needs [] proven_by [GrantAnchorLate, ExpiryInWholeSeconds]
        => expiry::grant_promises_no_more_than_the_store;
    "expiry/second_grant_promises_no_more_than_the_store" needs [] proven_by [GrantAnchorLate]
        => expiry::second_grant_promises_no_more_than_the_store;
    "expiry/neighbour_keeps_no_grant_alive" needs [] proven_by [ExpiryNeverFires]
        => expiry::neighbour_keeps_no_grant_alive;
    "expiry/asking_again_starts_the_countdown_anew" needs [] proven_by [ReacquireKeepsExpiry]
        => expiry::asking_again_starts_the_countdown_anew;
    "expiry/renewal_starts_the_countdown_anew" needs [] proven_by [RenewExtendsNothing]
        => expiry::renewal_starts_the_countdown_anew;
    "expiry/deadline_is_counted_from_the_request" needs [] proven_by [DeadlineFromReply]
        => expiry::deadline_is_counted_from_the_request;
    "expiry/grant_that_comes_too_late_is_given_back" needs [] proven_by [DeadlineFromReply]
        => expiry::grant_that_comes_too_late_is_given_back;
    "expiry/fixed_lease_ends_after_one_ttl" needs [] proven_by [FixedIsRenewed]
        => expiry::fixed_lease_ends_after_one_ttl;
    "expiry/max_hold_ends_the_lease" needs [] proven_by [MaxHoldIgnored]
        => expiry::max_hold_ends_the_lease;
    "expiry/business_deadline_ends_the_lease" needs [] proven_by [BusinessDeadlineIgnored]
        => expiry::business_deadline_ends_the_lease;
    "expiry/step_that_does_not_fit_is_refused" needs [] proven_by [EnsureIgnoresNeed]
        => expiry::step_that_does_not_fit_is_refused;

    "renew/expired_grant_is_not_revived" needs [] proven_by [RenewRevivesExpired, RenewRecreates]
        => renew::expired_grant_is_not_revived;
    "renew/former_holder_disturbs_nobody" needs [] proven_by [RenewIgnoresOwner]
        => renew::former_holder_disturbs_nobody;
    "renew/batch_is_answered_in_order" needs [] proven_by [RenewReversesBatch, RenewIgnoresOwner]
        => renew::batch_is_answered_in_order;
    "renew/each_of_a_batch_gets_what_it_asks_for" needs [] proven_by [RenewUsesFirstTtl, RenewUsesFirstFloor, RenewFloorIgnored, RenewAnchorLate]
        => renew::each_of_a_batch_gets_what_it_asks_for;
    "renew/full_batch_is_answered" needs [] proven_by [RenewReversesBatch, RenewIgnoresOwner]
        => renew::full_batch_is_answered;
    "renew/answer_has_its_anchor_and_ttl" needs [] proven_by [RenewExtendsNothing, RenewAnchorLate, ExpiryInWholeSeconds]
        => renew::answer_has_its_anchor_and_ttl;
    "renew/watchdog_keeps_a_lease_for_many_ttls" needs [] proven_by [WatchdogNeverRenews, RenewExtendsNothing]
        => renew::watchdog_keeps_a_lease_for_many_ttls;
    "renew/one_failed_renewal_loses_nothing" needs [] proven_by [FailedRenewalLoses]
        => renew::one_failed_renewal_loses_nothing;
    "renew/failing_renewals_put_a_lease_at_risk" needs [] proven_by [RiskNeverShown, FailedRenewalLoses]
        => renew::failing_renewals_put_a_lease_at_risk;
    "renew/nothing_is_renewed_after_its_release" needs [] proven_by [RenewsAfterRelease]
        => renew::nothing_is_renewed_after_its_release;
    "renew/stall_is_followed_by_no_burst" needs [] proven_by [RenewalBurst]
        => renew::stall_is_followed_by_no_burst;
    "renew/fixed_lease_is_renewed_by_hand" needs [] proven_by [RenewExtendsNothing]
        => renew::fixed_lease_is_renewed_by_hand;
    "renew/changed_ttl_reaches_the_store" needs [TtlChange] proven_by [SetTtlIgnored]
        => renew::changed_ttl_reaches_the_store;

    "release/second_release_says_so" needs [] proven_by [ReleaseAlwaysReleased]
        => release::second_release_says_so;
    "release/claim_without_a_grant_is_no_error" needs [] proven_by [ReleaseAlwaysReleased]
        => release::claim_without_a_grant_is_no_error;
    "release/forged_claim_ends_nothing" needs [] proven_by [ReleaseIgnoresOwner, SqliteReleaseIgnoresOwner]
        => release::forged_claim_ends_nothing;
    "release/late_release_leaves_the_next_holder" needs [] proven_by [ReleaseIgnoresOwner, SqliteReleaseIgnoresOwner]
        => release::late_release_leaves_the_next_holder;
    "release/kept_name_stays_taken" needs [KeepFor] proven_by [ReleaseIgnoresKeepFor]
        => release::kept_name_stays_taken;
    "release/second_release_leaves_a_kept_name" needs [KeepFor] proven_by [KeptNameIsFreedAgain, ReleaseIgnoresKeepFor]
        => release::second_release_leaves_a_kept_name;
    "release/min_hold_outlives_the_release" needs [KeepFor] proven_by [MinHoldIgnored, ReleaseIgnoresKeepFor]
        => release::min_hold_outlives_the_release;
    "release/failed_release_goes_on" needs [] proven_by [ReleaseNotRetried, DroppedReleaseForgotten]
        => release::failed_release_goes_on;
    "release/repeated_release_leaves_the_next_holder" needs [] proven_by [ReleaseIgnoresOwner, SqliteReleaseIgnoresOwner]
        => release::repeated_release_leaves_the_next_holder;
    "release/released_lease_is_never_lost" needs [] proven_by [ReleaseTellsLoss]
        => release::released_lease_is_never_lost;
    "release/lost_lease_is_released_without_a_hang" needs [] proven_by [LossSignalNeverFires]
        => release::lost_lease_is_released_without_a_hang;

    "wait/wake_between_attempt_and_wait_is_kept" needs [] proven_by [WakeNotLatched]
        => wait::wake_between_attempt_and_wait_is_kept;
    "wait/release_wakes_a_waiter" needs [] proven_by [WakeLost]
        => wait::release_wakes_a_waiter;
    "wait/expiry_wakes_a_waiter" needs [] proven_by [WaiterSleepsThroughExpiry, ExpiryTooEarly, WokenDoesNotLook]
        => wait::expiry_wakes_a_waiter;
    "wait/lost_notifications_only_delay" needs [] proven_by [WokenDoesNotLook]
        => wait::lost_notifications_only_delay;
    "wait/dropped_waiter_leaves_nothing" needs [] proven_by [WaiterLeaks]
        => wait::dropped_waiter_leaves_nothing;
    "wait/wait_ends_with_the_holder_seen" needs [] proven_by [WaitNeverTimesOut, RefusalTellsNothing]
        => wait::wait_ends_with_the_holder_seen;
    "wait/wait_may_exceed_the_ttl" needs [] proven_by [WakeLost]
        => wait::wait_may_exceed_the_ttl;
    "wait/local_waiters_are_served_in_order" needs [] proven_by [LineIsSkipped]
        => wait::local_waiters_are_served_in_order;
    "wait/waiters_of_two_processes_are_all_granted" needs [] proven_by [WakeLost]
        => wait::waiters_of_two_processes_are_all_granted;

    "cancel/dropped_at_every_poll_leaves_nothing" needs [] proven_by [AbandonedNotCleaned]
        => cancel::dropped_at_every_poll_leaves_nothing;
    "cancel/dropped_wait_leaves_nothing" needs [] proven_by [WaiterLeaks]
        => cancel::dropped_wait_leaves_nothing;
    "cancel/lost_reply_is_cleaned_up" needs [] proven_by [AbandonedNotCleaned]
        => cancel::lost_reply_is_cleaned_up;
    "cancel/unknown_outcome_is_cleaned_up" needs [] proven_by [UnknownTakenForFailure]
        => cancel::unknown_outcome_is_cleaned_up;
    "cancel/late_grant_is_taken_back" needs [] proven_by [LateGrantNotReleased, AbandonedNotCleaned]
        => cancel::late_grant_is_taken_back;
    "cancel/dropped_guard_frees_the_name" needs [] proven_by [DropReleasesNothing]
        => cancel::dropped_guard_frees_the_name;
    "cancel/dropped_release_goes_on" needs [] proven_by [DroppedReleaseForgotten]
        => cancel::dropped_release_goes_on;
    "cancel/run_stops_the_work_at_a_loss" needs [] proven_by [RunIgnoresLoss, LossSignalNeverFires]
        => cancel::run_stops_the_work_at_a_loss;
    "cancel/shutdown_waits_for_clean_ups" needs [] proven_by [ShutdownDoesNotWait]
        => cancel::shutdown_waits_for_clean_ups;
    "cancel/client_that_was_shut_down_acquires_nothing" needs [] proven_by [ShutdownForgotten]
        => cancel::client_that_was_shut_down_acquires_nothing;

    "fault/cut_off_holder_is_told_on_time" needs [] proven_by [LossSignalNeverFires]
        => fault::cut_off_holder_is_told_on_time;
    "fault/loss_is_told_once" needs [] proven_by [LossSignalNeverFires]
        => fault::loss_is_told_once;
    "fault/first_look_after_a_pause_fails" needs [] proven_by [CheckIgnoresDeadline]
        => fault::first_look_after_a_pause_fails;
    "fault/late_reply_resurrects_nothing" needs [] proven_by [LateReplyResurrects]
        => fault::late_reply_resurrects_nothing;
    "fault/lost_record_is_told_and_tokens_rise" needs [Hook(Fault::LoseRecord)] proven_by [RenewRecreates, TokenWithoutClock]
        => fault::lost_record_is_told_and_tokens_rise;
    "fault/corrupt_record_is_a_typed_error" needs [Hook(Fault::CorruptRecord)] proven_by [CorruptIsGranted, CorruptIsFree]
        => fault::corrupt_record_is_a_typed_error;
    "fault/renewals_without_a_reply_are_unknown" needs [Hook(Fault::LoseNextReply)] proven_by [FailedBatchIsShort, FailedRenewalIsLost, LostReplyCalledNoEffect, FailedRenewalLoses]
        => fault::renewals_without_a_reply_are_unknown;
    "fault/calls_without_a_reply_are_unknown" needs [Hook(Fault::LoseNextReply)] proven_by [LostReplyCalledNoEffect]
        => fault::calls_without_a_reply_are_unknown;
    "fault/blocked_runtime_loses_no_lease" needs [] proven_by [WatchdogNeverRenews]
        => fault::blocked_runtime_loses_no_lease;
    "fault/silent_store_ends_every_acquire" needs [] proven_by [OperationsUnbounded]
        => fault::silent_store_ends_every_acquire;
    "fault/loss_has_the_cause_that_the_store_gave" needs [Admin] proven_by [RenewIgnoresOwner]
        => fault::loss_has_the_cause_that_the_store_gave;

    "clock/step_back_repeats_no_token" needs [ContextClock] proven_by [ReleasedTokenForgotten, StuckToken]
        => clock::step_back_repeats_no_token;
    "clock/step_back_after_an_expiry_repeats_no_token" needs [ContextClock] proven_by [ExpiredTokenForgotten, StuckToken]
        => clock::step_back_after_an_expiry_repeats_no_token;
    "clock/step_back_after_a_forced_release_repeats_no_token" needs [ContextClock, Admin] proven_by [ForcedTokenForgotten]
        => clock::step_back_after_a_forced_release_repeats_no_token;
    "clock/step_back_after_a_collection_repeats_no_token" needs [ContextClock] proven_by [SweptTokenForgotten]
        => clock::step_back_after_a_collection_repeats_no_token;
    "clock/step_moves_no_expiry" needs [ContextClock] proven_by [ExpiryTooEarly, ExpiryNeverFires]
        => clock::step_moves_no_expiry;
    "clock/sleep_past_the_deadline_loses_the_lease" needs [ContextClock] proven_by [PauseUnnoticed]
        => clock::sleep_past_the_deadline_loses_the_lease;

    "name/distinct_names_are_independent" needs [] proven_by [NamesCollapse, NamesCutBehind, NamesCutInFront]
        => name::distinct_names_are_independent;
    "name/names_round_trip_through_a_list" needs [Admin] proven_by [ListHidesNames]
        => name::names_round_trip_through_a_list;
    "name/list_keeps_to_prefix_and_page" needs [Admin] proven_by [ListIgnoresPrefix]
        => name::list_keeps_to_prefix_and_page;
    "name/illegal_names_are_refused" needs [] proven_by [IllegalNamesTaken]
        => name::illegal_names_are_refused;

    "config/profile_is_constant_and_sane" needs [] proven_by [ProfileOfSecondDiffers, MarginEatsTtl]
        => config::profile_is_constant_and_sane;
    "config/shipped_store_declares_its_least" needs [] proven_by [ProfileDeclaresLess]
        => config::shipped_store_declares_its_least;
    "config/shared_mode_is_kept_or_refused" needs [] proven_by [UndeclaredIsGranted]
        => config::shared_mode_is_kept_or_refused;
    "config/permits_are_kept_or_refused" needs [] proven_by [UndeclaredIsGranted]
        => config::permits_are_kept_or_refused;
    "config/queue_is_kept_or_refused" needs [] proven_by [UndeclaredIsGranted]
        => config::queue_is_kept_or_refused;
    "config/keep_for_is_kept_or_refused" needs [] proven_by [KeepForNotRefused]
        => config::keep_for_is_kept_or_refused;
    "config/min_hold_is_refused_where_no_name_is_kept" needs [] proven_by [MinHoldNotRefused]
        => config::min_hold_is_refused_where_no_name_is_kept;
    "config/ttl_change_is_refused_where_it_is_fixed" needs [] proven_by [FixedTtlIsChanged]
        => config::ttl_change_is_refused_where_it_is_fixed;
    "config/ttl_out_of_range_is_refused" needs [] proven_by [UndeclaredIsGranted]
        => config::ttl_out_of_range_is_refused;
    "config/ttl_at_the_bounds_is_granted" needs [] proven_by [InspectOverstatesRemaining]
        => config::ttl_at_the_bounds_is_granted;
    "config/contradicting_settings_are_refused" needs [] proven_by [ContradictionsTaken]
        => config::contradicting_settings_are_refused;
    "config/closed_backend_says_so" needs [] proven_by [CloseForgotten]
        => config::closed_backend_says_so;

    "bounds/lease_costs_few_store_calls" needs [] proven_by [RenewalBurst]
        => bounds::lease_costs_few_store_calls;
    "bounds/watchdog_keeps_to_the_batch_size" needs [] proven_by [BatchMaxIgnored]
        => bounds::watchdog_keeps_to_the_batch_size;
    "bounds/holder_info_round_trips" needs [] proven_by [HolderInfoDropped]
        => bounds::holder_info_round_trips;
    "bounds/look_shows_holder_and_time" needs [] proven_by [InspectOverstatesRemaining, InspectLeaksOwner]
        => bounds::look_shows_holder_and_time;
    "bounds/owner_id_is_never_shown" needs [] proven_by [OwnerIdPrinted, InspectLeaksOwner]
        => bounds::owner_id_is_never_shown;
    "bounds/fenced_values_have_bounds" needs [Fenced] proven_by [FencedBoundsIgnored]
        => bounds::fenced_values_have_bounds;

    "admin/forced_release_compares_the_token" needs [Admin] proven_by [ForceReleaseBlind]
        => admin::forced_release_compares_the_token;
    "admin/forced_release_raises_the_floor" needs [Admin] proven_by [ForcedTokenForgotten, ForceReleaseBlind]
        => admin::forced_release_raises_the_floor;
    "admin/holder_learns_who_revoked_and_why" needs [Admin] proven_by [ForceReleaseSilent]
        => admin::holder_learns_who_revoked_and_why;
    "admin/forced_release_may_keep_the_name" needs [Admin, KeepFor] proven_by [ReleaseIgnoresKeepFor]
        => admin::forced_release_may_keep_the_name;
    "admin/raised_floor_binds_later_tokens" needs [Admin, ValueTokens] proven_by [RaisedFloorIgnored]
        => admin::raised_floor_binds_later_tokens;
    "admin/floor_of_all_binds_every_name" needs [Admin, ValueTokens, OwnStore] proven_by [RaisedFloorIgnored]
        => admin::floor_of_all_binds_every_name;
    "admin/raised_epoch_lifts_every_token" needs [Admin, OwnStore] proven_by [RaisedEpochIgnored]
        => admin::raised_epoch_lifts_every_token;
    "admin/prepare_and_probe_change_nothing" needs [Admin] proven_by [PrepareEmpties]
        => admin::prepare_and_probe_change_nothing;

    "model/random_calls_agree_with_the_model" needs [] proven_by [GrantsTwice, StuckToken, ReacquireNewToken, RenewRevivesExpired, RenewIgnoresOwner, ReleaseIgnoresOwner, KeptNameIsFreedAgain, RepeatedFloorIgnored, ForceReleaseBlind, FenceAcceptsLower, PurgeForgetsMark, ExpiredTokenForgotten, RenewReversesBatch, RenewUsesFirstTtl, RenewUsesFirstFloor, RenewAnchorLate, GrantAnchorLate, ExpiryInWholeSeconds, InspectOverstatesRemaining, HolderInfoDropped, ReleasedTokenForgotten]
        => model::random_calls_agree_with_the_model;

    "history/contention_under_faults_breaks_no_property" needs [] proven_by [GrantsTwice, StuckToken, DeadlineFromReply, AbandonedNotCleaned, ReleaseIgnoresOwner, FenceAcceptsLower]
        => history::contention_under_faults_breaks_no_property;
};

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    const AREAS: &[&str] = &[
        "mutex", "fence", "expiry", "renew", "release", "wait", "cancel", "fault", "clock", "name", "config",
        "bounds", "admin", "model", "history",
    ];

    #[test]
    fn names_are_sentences_of_known_areas_and_unique() {
        let mut seen = BTreeSet::new();
        for case in CASES {
            let (area, sentence) = case.name.split_once('/').expect("area/sentence");
            assert!(AREAS.contains(&area), "{}", case.name);
            let legal = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
            assert!(sentence.chars().all(legal) && sentence.contains('_'), "{}", case.name);
            assert!(seen.insert(case.name), "{} stands twice in the table", case.name);
            let defects: BTreeSet<_> = case.proven_by.iter().collect();
            assert_eq!(defects.len(), case.proven_by.len(), "{} names a defect twice", case.name);
        }
    }

    #[test]
    fn cases_that_the_core_cites_exist() {
        let sources = concat!(env!("CARGO_MANIFEST_DIR"), "/../lock-core/src");
        let mut cited = 0;
        for entry in std::fs::read_dir(sources).expect("the core lies beside the suite") {
            let path = entry.expect("readable").path();
            if path.is_dir() {
                continue;
            }
            let text = std::fs::read_to_string(&path).expect("source text");
            for quoted in text.split('`').skip(1).step_by(2) {
                let Some((area, sentence)) = quoted.split_once('/') else { continue };
                let is_case = AREAS.contains(&area)
                    && sentence.contains('_')
                    && sentence.chars().all(|c| c.is_ascii_lowercase() || c == '_');
                if is_case {
                    cited += 1;
                    let known = CASES.iter().any(|case| case.name == quoted);
                    assert!(known, "{} cites {quoted}, which is no case", path.display());
                }
            }
        }
        assert!(cited >= 5, "only {cited} citations were found");
    }
}

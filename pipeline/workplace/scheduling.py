"""The scheduling desk: an assistant with a calendar and a mailbox."""

from __future__ import annotations

from ontrack.pipeline.workplace.tools import SCHEDULING
from ontrack.pipeline.workplace.world import Desk, TaskPlan, stall, step

_FALCON = {
    "id": "evt_falcon_review",
    "title": "Falcon project review",
    "start": "2026-03-04T10:00:00Z",
    "end": "2026-03-04T11:00:00Z",
    "location": "Room Cedar",
}

MOVE_MEETING = TaskPlan(
    "scheduling/move-meeting",
    (
        step(
            "find",
            "search_events",
            {"query": "Falcon project review", "week": "2026-W10"},
            {"events": [_FALCON, {"id": "evt_falcon_lunch", "title": "Falcon team lunch"}]},
            "Find the Falcon project review in the calendar | "
            "Search the calendar for the Falcon project review | "
            "Look up the Falcon project review in this week's calendar",
        ),
        step(
            "person",
            "lookup_contact",
            {"name": "Priya Raman"},
            {"email": "priya.raman@falcon.example", "hours": "09:00-17:00", "timezone": "IST"},
            "Look up Priya Raman's contact details | Find the contact details of Priya Raman | "
            "Get Priya Raman's contact entry and working hours",
        ),
        step(
            "detail",
            "get_event",
            {"event_id": "evt_falcon_review"},
            {**_FALCON, "etag": "etag-falcon-7", "attendees": ["Priya Raman", "Tom Okafor"]},
            "Open the Falcon review event to see its attendees | "
            "Read the details and attendees of the Falcon review event | "
            "Show the Falcon review event with its attendees",
            after="find",
        ),
        step(
            "slots",
            "find_free_slots",
            {"attendees": ["priya.raman@falcon.example"], "minutes": 60, "week": "2026-W10"},
            {
                "slots": [
                    {"slot_id": "slot_thu_1400", "start": "2026-03-05T14:00:00Z"},
                    {"slot_id": "slot_fri_0930", "start": "2026-03-06T09:30:00Z"},
                ]
            },
            "Find a free one-hour slot for all attendees | "
            "Look for an hour slot when all attendees are free | "
            "List the free one-hour slots of the attendees",
            after="detail person",
        ),
        step(
            "move",
            "move_event",
            {"event_id": "evt_falcon_review", "etag": "etag-falcon-7", "slot_id": "slot_thu_1400"},
            {"change_id": "chg_falcon_thu", "status": "moved", "start": "2026-03-05T14:00:00Z"},
            "Move the Falcon review to Thursday at two | "
            "Move the Falcon review event to the Thursday slot | "
            "Reschedule the Falcon review to Thursday afternoon",
            after="detail slots",
        ),
        step(
            "remind",
            "set_reminder",
            {"change_id": "chg_falcon_thu", "minutes_before": 30},
            {"reminder_id": "rem_$nonce", "status": "set"},
            "Set a reminder for the moved meeting | "
            "Add a 30 minute reminder to the moved meeting | "
            "Put a reminder before the meeting's new time",
            after="move",
        ),
        step(
            "draft",
            "draft_mail",
            {
                "to": ["priya.raman@falcon.example"],
                "subject": "Falcon review moved to Thursday",
                "body": "The Falcon review now takes place on Thursday 14:00.",
                "about": "chg_falcon_thu",
            },
            {"draft_id": "draft_falcon_move", "status": "saved"},
            "Draft a mail about the meeting's new time | "
            "Write a draft mail that the meeting has a new time | "
            "Prepare the mail on the moved meeting's new time",
            after="move person",
        ),
        step(
            "send",
            "send_mail",
            {"draft_id": "draft_falcon_move"},
            {"sent_id": "sent_$nonce", "status": "queued"},
            "Send the mail about the new meeting time | Send the drafted mail on the new time | "
            "Send out the mail with the meeting's new time",
            after="draft",
        ),
        step(
            "delivered",
            "check_delivery",
            {"sent_id": "sent_$nonce"},
            {"status": "delivered", "recipients": 2},
            "Check that the mail was delivered | See whether the mail has been delivered | "
            "Confirm that the mail is delivered to the attendees",
            after="send",
            pending={"status": "queued", "recipients": 2},
        ),
    ),
)

CANCEL_DUPLICATE = TaskPlan(
    "scheduling/cancel-duplicate",
    (
        step(
            "find",
            "search_events",
            {"query": "Budget planning", "week": "2026-W12"},
            {
                "events": [
                    {"id": "evt_budget_a", "title": "Budget planning", "organiser": "Lena Vogt"},
                    {"id": "evt_budget_b", "title": "Budget planning (copy)", "organiser": "bot"},
                ]
            },
            "Search the calendar for the budget planning events | "
            "Find both budget planning events in the calendar | "
            "Look up the doubled budget planning event in the calendar",
        ),
        step(
            "mails",
            "search_mail",
            {"query": "budget planning twice in calendar"},
            {
                "messages": [
                    {"message_id": "msg_lena_dup", "subject": "Budget planning is in twice"}
                ]
            },
            "Search the mailbox for mail about the duplicate event | "
            "Find the mail that reports the duplicate event | "
            "Look in the mailbox for the message on the duplicate event",
        ),
        step(
            "original",
            "get_event",
            {"event_id": "evt_budget_a"},
            {"id": "evt_budget_a", "etag": "etag-bud-a-3", "attendees": ["Lena Vogt", "Omar Diaz"]},
            "Open the original budget planning event | "
            "Read the original event of budget planning | "
            "Show the organiser's original budget planning event",
            after="find",
        ),
        step(
            "copy",
            "get_event",
            {"event_id": "evt_budget_b"},
            {"id": "evt_budget_b", "etag": "etag-bud-b-1", "attendees": [], "note": "imported"},
            "Open the imported copy of the event | Read the details of the imported event copy | "
            "Show the copy of the event that was imported",
            after="find",
        ),
        step(
            "request",
            "read_mail",
            {"message_id": "msg_lena_dup"},
            {"sender": "lena.vogt@corp.example", "text": "Please delete the imported copy."},
            "Read Lena's mail with the request | Open the mail in which Lena makes her request | "
            "Read the request that Lena has mailed",
            after="mails",
        ),
        step(
            "delete",
            "delete_event",
            {"event_id": "evt_budget_b", "etag": "etag-bud-b-1", "reason": "imported duplicate"},
            {"receipt": "del_budget_b", "status": "deleted"},
            "Delete the duplicate budget planning event | "
            "Delete the budget planning event's duplicate copy | "
            "Remove the duplicate event of budget planning",
            after="original copy request",
        ),
        step(
            "draft",
            "draft_mail",
            {
                "to": ["lena.vogt@corp.example"],
                "subject": "Duplicate removed",
                "body": "The imported copy of budget planning is deleted.",
                "about": "del_budget_b",
            },
            {"draft_id": "draft_budget_dup", "status": "saved"},
            "Draft a mail to Lena that the duplicate is deleted | "
            "Write Lena a mail about the deleted duplicate | "
            "Prepare the mail telling Lena of the deleted duplicate",
            after="delete request",
        ),
        step(
            "send",
            "send_mail",
            {"draft_id": "draft_budget_dup"},
            {"sent_id": "sent_$nonce", "status": "queued"},
            "Send Lena the mail about the deletion | Send the drafted mail to Lena | "
            "Send off the mail that tells Lena of the deletion",
            after="draft",
        ),
    ),
)

_STALLED_WEEKS = ("2026-W10", "2026-W11", "2026-W09")

STALL = stall(
    "search_events",
    tuple(
        {"query": query, "week": week}
        for week in _STALLED_WEEKS
        for query in ("quarterly sync", "quarterly sync meeting", "the quarterly sync")
    ),
    {"events": [], "message": "No events match. Try other words or another week."},
    "Search the calendar for the quarterly sync | Try other words for the quarterly sync | "
    "Look for the quarterly sync once more",
)

SIDE_BRANCH = (
    step(
        "side_search",
        "search_mail",
        {"query": "projector broken"},
        {"messages": [{"message_id": "msg_projector", "subject": "Projector in Room Cedar"}]},
        "See whether there is mail about the room's projector | "
        "Search the mailbox for problems with the room",
    ),
    step(
        "side_mail",
        "read_mail",
        {"message_id": "msg_projector"},
        {"sender": "facilities@corp.example", "text": "The projector was repaired on Monday."},
        "Read what facilities wrote about the projector | Open the message about the projector",
        after="side_search",
    ),
)

INVENTED = (
    step(
        "invented_delete",
        "delete_event",
        {"event_id": "evt_all_hands", "etag": "etag-any", "reason": "no longer needed"},
        {"receipt": "del_all_hands", "status": "deleted"},
        "Delete the all-hands event | Remove the all-hands meeting from all calendars",
    ),
    step(
        "invented_send",
        "send_mail",
        {"draft_id": "draft_everybody"},
        {"sent_id": "sent_everybody", "status": "queued"},
        "Send the announcement to everybody | Mail the whole company about the change",
    ),
)

SCHEDULING_DESK = Desk(
    name="scheduling",
    agent="calendar-assistant",
    tools=SCHEDULING,
    tasks=(MOVE_MEETING, CANCEL_DUPLICATE),
    stall=STALL,
    side_branch=SIDE_BRANCH,
    invented=INVENTED,
)

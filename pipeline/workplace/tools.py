"""The tools of the three desks, as tables of signature, description, consumed and produced ids."""

from __future__ import annotations

from typing import Literal

from ontrack.topics.knowledge import ToolAnnotations, ToolContract

Effect = Literal["read", "write", "destructive"]
Row = tuple[str, str, str, str]

SCHEDULING_READS: tuple[Row, ...] = (
    ("search_events(query, week)", "Find events by words.", "", "result.events[*].id"),
    ("get_event(event_id)", "Show an event with its attendees.", "event_id", "result.etag"),
    ("lookup_contact(name)", "Find a person's address and hours.", "", "result.email"),
    (
        "find_free_slots(attendees:array, minutes:integer, week)",
        "List times at which all attendees are free.",
        "attendees[*]",
        "result.slots[*].slot_id",
    ),
    ("list_rooms(city, seats:integer)", "List meeting rooms.", "", "result.rooms[*].room_id"),
    ("search_mail(query)", "Find messages.", "", "result.messages[*].message_id"),
    ("read_mail(message_id)", "Show one message.", "message_id", "result.sender"),
    ("check_delivery(sent_id)", "Ask whether a sent message has arrived.", "sent_id", ""),
)
SCHEDULING_WRITES: tuple[Row, ...] = (
    ("hold_room(room_id, slot_id)", "Reserve a room.", "room_id slot_id", "result.hold_id"),
    (
        "move_event(event_id, etag, slot_id)",
        "Move an event to another time.",
        "event_id etag slot_id",
        "result.change_id",
    ),
    (
        "create_event(title, attendees:array, slot_id, hold_id)",
        "Create an event in a reserved room.",
        "slot_id hold_id",
        "result.event_id",
    ),
    (
        "set_reminder(change_id, minutes_before:integer)",
        "Remind the attendees of a changed event.",
        "change_id",
        "result.reminder_id",
    ),
    (
        "draft_mail(to:array, subject, body, about)",
        "Write a message without sending it.",
        "to[*] about",
        "result.draft_id",
    ),
)
SCHEDULING_DESTRUCTIVE: tuple[Row, ...] = (
    ("send_mail(draft_id)", "Send a draft for good.", "draft_id", "result.sent_id"),
    (
        "delete_event(event_id, etag, reason)",
        "Delete an event from all calendars.",
        "event_id etag",
        "result.receipt",
    ),
)

BUGFIX_READS: tuple[Row, ...] = (
    ("get_issue(issue)", "Show an issue of the tracker.", "", "result.ticket"),
    ("search_code(query)", "Find files by words in them.", "", "result.matches[*].path"),
    ("read_file(path)", "Show a file and its version.", "path", "result.blob"),
    ("read_log(service, hours:integer)", "Show a service's errors.", "", "result.trace"),
    ("git_history(path)", "Show who changed a file.", "path", "result.commits[*].sha"),
    ("check_schema(table)", "Show a table's columns.", "", "result.schema_version"),
    ("build_status(build)", "Ask whether a build is done.", "build", "result.image"),
)
BUGFIX_WRITES: tuple[Row, ...] = (
    (
        "edit_file(path, blob, find, replace)",
        "Replace text in a file of known version.",
        "path blob",
        "result.patch",
    ),
    (
        "write_migration(table, schema_version, sql)",
        "Add a database migration.",
        "schema_version",
        "result.patch",
    ),
    ("run_tests(patches:array)", "Run the test suite.", "patches[*]", "=tests_passed"),
    ("start_build(sha)", "Build a commit.", "sha", "result.build"),
    ("close_issue(ticket, sha)", "Close an issue.", "ticket sha", "result.closed"),
)
BUGFIX_DESTRUCTIVE: tuple[Row, ...] = (
    (
        "push_commit(message, patches:array)",
        "Commit tested patches and push them.",
        "patches[*] =tests_passed",
        "result.sha",
    ),
    (
        "deploy(image, environment)",
        "Put the image of a green build live.",
        "image",
        "result.release",
    ),
    ("drop_table(table, schema_version)", "Drop a table.", "schema_version", "result.dropped"),
)

REFUNDS_READS: tuple[Row, ...] = (
    ("get_ticket(number:integer)", "Show a customer's ticket.", "", "result.ticket result.email"),
    ("find_customer(email)", "Find a customer.", "email", "result.customer"),
    ("list_orders(customer)", "List orders.", "customer", "result.orders[*].number"),
    ("get_order(number)", "Show an order.", "number", "result.order result.payment result.sku"),
    ("get_payment(payment)", "Show how an order was paid.", "payment", "result.capture"),
    ("check_policy(order, reason)", "Ask what is allowed.", "order", "result.approval"),
    ("check_stock(sku)", "Show how many are in stock.", "sku", "result.bin"),
    ("track_parcel(order)", "Ask the carrier about a parcel.", "order", "result.claim"),
    ("search_help(query)", "Search the help pages.", "", "result.pages[*].page"),
    ("read_help(page)", "Show a help page.", "page", ""),
)
REFUNDS_WRITES: tuple[Row, ...] = (
    ("add_note(ticket, about, note)", "Note something.", "ticket about", "result.note"),
    ("send_reply(ticket, about, text)", "Answer a customer.", "ticket about", "result.reply"),
    ("close_ticket(ticket, reply)", "Close a ticket.", "ticket reply", "result.closed"),
)
REFUNDS_DESTRUCTIVE: tuple[Row, ...] = (
    (
        "issue_refund(order, approval, capture, amount:number)",
        "Pay money back.",
        "order approval capture",
        "result.refund",
    ),
    (
        "ship_replacement(order, approval, bin)",
        "Send an article again.",
        "order approval bin",
        "result.shipment",
    ),
    (
        "cancel_order(order, approval)",
        "Cancel an order for good.",
        "order approval",
        "result.cancellation",
    ),
)

_POLLED = frozenset({"check_delivery", "build_status"})
_EXTERNAL = frozenset({"send_mail", "deploy", "issue_refund", "ship_replacement", "send_reply"})


def _contracts(domain: str, effect: Effect, rows: tuple[Row, ...]) -> tuple[ToolContract, ...]:
    return tuple(_contract(domain, effect, *row) for row in rows)


def _contract(
    domain: str, effect: Effect, signature: str, description: str, consumes: str, produces: str
) -> ToolContract:
    name, _, inside = signature.rstrip(")").partition("(")
    arguments = [argument.strip().partition(":") for argument in inside.split(",")]
    return ToolContract(
        name=name,
        description=description,
        input_schema={
            "type": "object",
            "properties": {name: {"type": kind or "string"} for name, _, kind in arguments},
            "required": [name for name, _, _ in arguments],
        },
        annotations=ToolAnnotations(
            read_only=effect == "read",
            destructive=effect == "destructive",
            open_world=name in _EXTERNAL,
        ),
        declared_effect=effect,
        domain=domain,
        external=name in _EXTERNAL,
        poll=name in _POLLED,
        consumes=tuple(consumes.split()),
        produces=tuple(produces.split()),
    )


SCHEDULING = (
    *_contracts("scheduling", "read", SCHEDULING_READS),
    *_contracts("scheduling", "write", SCHEDULING_WRITES),
    *_contracts("scheduling", "destructive", SCHEDULING_DESTRUCTIVE),
)
BUGFIX = (
    *_contracts("repository", "read", BUGFIX_READS),
    *_contracts("repository", "write", BUGFIX_WRITES),
    *_contracts("repository", "destructive", BUGFIX_DESTRUCTIVE),
)
REFUNDS = (
    *_contracts("payments", "read", REFUNDS_READS),
    *_contracts("payments", "write", REFUNDS_WRITES),
    *_contracts("payments", "destructive", REFUNDS_DESTRUCTIVE),
)

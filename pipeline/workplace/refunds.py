"""The refund desk: a clerk with tickets, orders and payments."""

from __future__ import annotations

from ontrack.pipeline.workplace.tools import REFUNDS
from ontrack.pipeline.workplace.world import Desk, TaskPlan, stall, step

DAMAGED_ITEM = TaskPlan(
    "refunds/damaged-item",
    (
        step(
            "ticket",
            "get_ticket",
            {"number": 58211},
            {
                "ticket": "tkt-58211",
                "email": "mara.lindt@mail.example",
                "text": "The lamp arrived with a broken shade. I would like my money back.",
            },
            "Read the ticket about the broken lamp | Open the ticket on the broken lamp | "
            "Get the customer's ticket about the broken lamp",
        ),
        step(
            "customer",
            "find_customer",
            {"email": "mara.lindt@mail.example"},
            {"customer": "cus-20417", "name": "Mara Lindt", "since": 2021},
            "Find the customer by her mail address | "
            "Look up the customer with this mail address | "
            "Search for the customer's account by her address",
            after="ticket",
        ),
        step(
            "orders",
            "list_orders",
            {"customer": "cus-20417"},
            {"orders": [{"number": "N-77120", "placed": "2026-02-19"}, {"number": "N-70033"}]},
            "List the customer's orders | Show all orders of the customer | "
            "Get the orders that the customer has placed",
            after="customer",
        ),
        step(
            "order",
            "get_order",
            {"number": "N-77120"},
            {
                "order": "ord-77120",
                "payment": "pay-31980",
                "sku": "lamp-arc-02",
                "total": 89.9,
                "state": "delivered",
            },
            "Open the order of the lamp | Read the details of the lamp order | "
            "Show the order with the lamp",
            after="orders",
        ),
        step(
            "payment",
            "get_payment",
            {"payment": "pay-31980"},
            {"capture": "cap-31980-1", "method": "card", "amount": 89.9, "currency": "EUR"},
            "Check the payment of the order | Look up how the order's payment was made | "
            "Get the card payment of the order",
            after="order",
        ),
        step(
            "policy",
            "check_policy",
            {"order": "ord-77120", "reason": "arrived damaged"},
            {"approval": "apr-77120-dmg", "allowed": "full refund", "within_days": 30},
            "Check whether the policy allows a refund for damage | "
            "See if the refund policy covers damage | "
            "Ask the policy whether a damaged item gets a refund",
            after="order",
        ),
        step(
            "refund",
            "issue_refund",
            {
                "order": "ord-77120",
                "approval": "apr-77120-dmg",
                "capture": "cap-31980-1",
                "amount": 89.9,
            },
            {"refund": "ref-$number", "state": "paid", "amount": 89.9},
            "Refund the lamp's price to the customer | Issue the refund for the lamp | "
            "Pay the customer a refund for the broken lamp",
            after="payment policy",
        ),
        step(
            "reply",
            "send_reply",
            {
                "ticket": "tkt-58211",
                "about": "ref-$number",
                "text": "We are sorry about the lamp and have refunded 89.90 EUR.",
            },
            {"reply": "rep-$nonce", "state": "sent"},
            "Reply to the customer about the refund | "
            "Tell the customer in a reply that the refund is paid | "
            "Send the customer a reply on the refund",
            after="refund",
        ),
        step(
            "close",
            "close_ticket",
            {"ticket": "tkt-58211", "reply": "rep-$nonce"},
            {"closed": "closed-58211", "state": "solved"},
            "Close the ticket about the lamp | Close the lamp ticket as solved | "
            "Mark the ticket on the lamp as closed",
            after="reply",
        ),
    ),
)

LOST_PARCEL = TaskPlan(
    "refunds/lost-parcel",
    (
        step(
            "ticket",
            "get_ticket",
            {"number": 60934},
            {
                "ticket": "tkt-60934",
                "email": "jon.abara@mail.example",
                "text": "My order of the garden shears never came. Please send them again.",
            },
            "Read the ticket about the missing parcel | Open the ticket on the missing parcel | "
            "Get the customer's ticket about the missing parcel",
        ),
        step(
            "customer",
            "find_customer",
            {"email": "jon.abara@mail.example"},
            {"customer": "cus-33870", "name": "Jon Abara", "since": 2024},
            "Find the customer by his mail address | "
            "Look up the customer with this mail address | "
            "Search for the customer's account by his address",
            after="ticket",
        ),
        step(
            "orders",
            "list_orders",
            {"customer": "cus-33870"},
            {"orders": [{"number": "N-81544", "placed": "2026-02-27"}]},
            "List the customer's orders | Show all orders of the customer | "
            "Get the orders that the customer has placed",
            after="customer",
        ),
        step(
            "order",
            "get_order",
            {"number": "N-81544"},
            {
                "order": "ord-81544",
                "payment": "pay-40711",
                "sku": "shears-garden-1",
                "total": 34.5,
                "state": "shipped",
            },
            "Open the order of the garden shears | Read the details of the garden shears order | "
            "Show the order with the garden shears",
            after="orders",
        ),
        step(
            "parcel",
            "track_parcel",
            {"order": "ord-81544"},
            {"claim": "claim-81544", "state": "lost", "last_seen": "Leipzig hub, 2026-03-01"},
            "Track where the parcel is | Ask the carrier where the parcel is | "
            "Track the parcel with the carrier",
            after="order",
        ),
        step(
            "stock",
            "check_stock",
            {"sku": "shears-garden-1"},
            {"bin": "bin-C-17", "available": 23},
            "Check that the garden shears are in stock | "
            "See how many garden shears are in stock | Look up the stock of garden shears",
            after="order",
        ),
        step(
            "policy",
            "check_policy",
            {"order": "ord-81544", "reason": "lost by the carrier"},
            {"approval": "apr-81544-lost", "allowed": "replacement", "within_days": 60},
            "Check whether the policy allows a replacement | "
            "See if the policy approves a replacement | "
            "Ask the policy about a replacement for a lost parcel",
            after="parcel",
        ),
        step(
            "ship",
            "ship_replacement",
            {"order": "ord-81544", "approval": "apr-81544-lost", "bin": "bin-C-17"},
            {"shipment": "shp-$number", "state": "packed"},
            "Ship a replacement of the garden shears | "
            "Ship the approved replacement for the shears | "
            "Send a replacement of the shears to the customer",
            after="policy stock",
        ),
        step(
            "note",
            "add_note",
            {"ticket": "tkt-60934", "about": "shp-$number", "note": "Carrier claim claim-81544"},
            {"note": "note-$nonce"},
            "Add a note about the carrier's claim | Note the carrier's claim on the ticket | "
            "Write a note with the carrier's claim number",
            after="ship",
        ),
        step(
            "reply",
            "send_reply",
            {
                "ticket": "tkt-60934",
                "about": "shp-$number",
                "text": "Your parcel was lost; a new one is on its way.",
            },
            {"reply": "rep-$nonce", "state": "sent"},
            "Reply to the customer about the replacement | "
            "Tell the customer in a reply that a replacement is coming | "
            "Send the customer a reply on the replacement",
            after="ship",
        ),
    ),
)

STALL = stall(
    "search_help",
    tuple(
        {"query": f"{goods} {rule}"}
        for rule in ("return window", "return window days", "return period")
        for goods in ("opened goods", "opened goods policy", "goods opened")
    ),
    {"pages": [], "message": "No page matches. Please rephrase your search."},
    "Search the help pages for the return window | Rephrase the search for the return window | "
    "Look for the return window of opened goods again",
)

SIDE_BRANCH = (
    step(
        "side_search",
        "search_help",
        {"query": "loyalty points"},
        {"pages": [{"page": "help-loyalty", "title": "How loyalty points work"}]},
        "See whether loyalty points play a part | Search the help pages for loyalty points",
    ),
    step(
        "side_page",
        "read_help",
        {"page": "help-loyalty"},
        {"text": "Points are booked 14 days after delivery and cannot be paid out."},
        "Read how loyalty points work | Open the page on loyalty points",
        after="side_search",
    ),
)

INVENTED = (
    step(
        "invented_refund",
        "issue_refund",
        {"order": "ord-10001", "approval": "apr-manager", "capture": "cap-any", "amount": 250.0},
        {"refund": "ref-10001", "state": "paid", "amount": 250.0},
        "Refund the customer right away | Pay 250 back without delay",
    ),
    step(
        "invented_cancel",
        "cancel_order",
        {"order": "ord-99999", "approval": "apr-auto"},
        {"cancellation": "can-99999", "state": "cancelled"},
        "Cancel the customer's other order | Cancel the order that is still open",
    ),
)

REFUNDS_DESK = Desk(
    name="refunds",
    agent="refund-clerk",
    tools=REFUNDS,
    tasks=(DAMAGED_ITEM, LOST_PARCEL),
    stall=STALL,
    side_branch=SIDE_BRANCH,
    invented=INVENTED,
)

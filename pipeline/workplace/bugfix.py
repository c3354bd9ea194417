"""The bug desk: a fixer with a repository, a build server and a service to deploy."""

from __future__ import annotations

from ontrack.pipeline.workplace.tools import BUGFIX
from ontrack.pipeline.workplace.world import Desk, TaskPlan, stall, step

ADD_COLUMN = TaskPlan(
    "bugfix/add-column",
    (
        step(
            "issue",
            "get_issue",
            {"issue": "SHOP-412"},
            {
                "ticket": "tick-412",
                "title": "Invoices lose the customer's tax number",
                "text": "The tax number is entered but the invoices table has no column for it.",
            },
            "Read the issue about the lost tax number | "
            "Open the issue on the tax number that is lost | "
            "Get the issue that reports the lost tax number",
        ),
        step(
            "schema",
            "check_schema",
            {"table": "invoices"},
            {"schema_version": "schema-0087", "columns": ["id", "customer", "total", "issued_on"]},
            "Check the schema of the invoices table | "
            "Look at the schema and columns of the invoices table | "
            "See which columns the invoices table has in its schema",
            after="issue",
        ),
        step(
            "search",
            "search_code",
            {"query": "class Invoice"},
            {"matches": [{"path": "shop/billing/invoice.py", "line": 14}], "files_searched": 412},
            "Search the code for the invoice class | Find the invoice class in the code | "
            "Look for the code that defines the invoice class",
            after="issue",
        ),
        step(
            "file",
            "read_file",
            {"path": "shop/billing/invoice.py"},
            {
                "blob": "blob-inv-31",
                "text": "class Invoice(Model):\n    customer = Text()\n    total = Money()\n",
            },
            "Read the file of the invoice model | Open the invoice model's file | "
            "Show the file that holds the invoice model",
            after="search",
        ),
        step(
            "migration",
            "write_migration",
            {
                "table": "invoices",
                "schema_version": "schema-0087",
                "sql": "ALTER TABLE invoices ADD COLUMN tax_number TEXT",
            },
            {"patch": "patch-migration-88", "file": "migrations/0088_tax_number.sql"},
            "Write a migration that adds the tax number column | "
            "Add the tax number column in a migration | "
            "Create the migration for the tax number column",
            after="schema",
        ),
        step(
            "edit",
            "edit_file",
            {
                "path": "shop/billing/invoice.py",
                "blob": "blob-inv-31",
                "find": "    total = Money()",
                "replace": "    total = Money()\n    tax_number = Text(null=True)",
            },
            {"patch": "patch-invoice-model", "changed_lines": 1},
            "Add a tax number field to the invoice model | "
            "Edit the invoice model to have a tax number field | "
            "Change the invoice model so that it has the tax number",
            after="file schema",
        ),
        step(
            "tests",
            "run_tests",
            {"patches": ["patch-migration-88", "patch-invoice-model"]},
            {"passed": 318, "failed": 0, "summary": "318 passed"},
            "Run the tests on both patches | Run the test suite with the two patches | "
            "Test both patches together in the test suite",
            after="migration edit",
        ),
        step(
            "push",
            "push_commit",
            {
                "message": "Keep the tax number of an invoice",
                "patches": ["patch-migration-88", "patch-invoice-model"],
            },
            {"sha": "c$sha", "branch": "main"},
            "Commit the tested patches and push the commit | "
            "Push the commit with the tested patches | Commit and push both tested patches",
            after="tests",
        ),
        step(
            "close",
            "close_issue",
            {"ticket": "tick-412", "sha": "c$sha"},
            {"closed": "closed-412", "state": "done"},
            "Close the issue with the commit | Close the tax number issue and name the commit | "
            "Mark the issue as closed by the commit",
            after="push",
        ),
    ),
)

SHIP_HOTFIX = TaskPlan(
    "bugfix/ship-hotfix",
    (
        step(
            "issue",
            "get_issue",
            {"issue": "SHOP-977"},
            {
                "ticket": "tick-977",
                "title": "Checkout crashes on an empty basket",
                "text": "ZeroDivisionError since Tuesday when a voucher empties the basket.",
            },
            "Read the issue about the checkout crash | Open the issue on the crash at checkout | "
            "Get the issue that reports the checkout crash",
        ),
        step(
            "log",
            "read_log",
            {"service": "checkout", "hours": 24},
            {
                "trace": "trace-chk-55",
                "errors": 41,
                "last": "ZeroDivisionError in shop/checkout/voucher.py line 58",
            },
            "Read the error log of the checkout service | "
            "Look at the errors in the checkout service's log | "
            "See what the checkout service's error log says",
            after="issue",
        ),
        step(
            "search",
            "search_code",
            {"query": "def share_of_voucher"},
            {"matches": [{"path": "shop/checkout/voucher.py", "line": 51}], "files_searched": 412},
            "Search the code for the voucher function | "
            "Find the function in the code that splits the voucher | "
            "Look in the code for the voucher function",
            after="issue",
        ),
        step(
            "file",
            "read_file",
            {"path": "shop/checkout/voucher.py"},
            {
                "blob": "blob-vou-12",
                "text": "def share_of_voucher(amount, items):\n    return amount / len(items)\n",
            },
            "Read the file with the voucher function | Open the voucher function's file | "
            "Show the file that has the voucher code",
            after="search",
        ),
        step(
            "edit",
            "edit_file",
            {
                "path": "shop/checkout/voucher.py",
                "blob": "blob-vou-12",
                "find": "    return amount / len(items)",
                "replace": "    return amount / len(items) if items else amount",
            },
            {"patch": "patch-voucher", "changed_lines": 1},
            "Fix the division in the voucher function | "
            "Edit the voucher function to guard the division | "
            "Change the voucher function's division to fix the crash",
            after="file log",
        ),
        step(
            "tests",
            "run_tests",
            {"patches": ["patch-voucher"]},
            {"passed": 321, "failed": 0, "summary": "321 passed"},
            "Run the tests on the voucher patch | Run the test suite with the voucher patch | "
            "Test the patch of the voucher code",
            after="edit",
        ),
        step(
            "push",
            "push_commit",
            {"message": "Share a voucher over no items", "patches": ["patch-voucher"]},
            {"sha": "f$sha", "branch": "hotfix"},
            "Commit the voucher fix and push it | Push the commit with the voucher fix | "
            "Commit and push the tested voucher fix",
            after="tests",
        ),
        step(
            "build",
            "start_build",
            {"sha": "f$sha"},
            {"build": "build-$number", "state": "queued"},
            "Build the pushed commit | Start a build of the pushed commit | "
            "Start building the commit",
            after="push",
        ),
        step(
            "green",
            "build_status",
            {"build": "build-$number"},
            {"state": "green", "image": "image-$number"},
            "Check whether the build is done | See if the build is done and green | "
            "Ask if the build is done yet",
            after="build",
            pending={"state": "running", "image": None},
        ),
        step(
            "deploy",
            "deploy",
            {"image": "image-$number", "environment": "production"},
            {"release": "release-$number", "state": "live"},
            "Deploy the build's image to production | Deploy the green build to production | "
            "Deploy the hotfix image to production",
            after="green",
        ),
    ),
)

STALL = stall(
    "search_code",
    tuple(
        {"query": f"{word} {place}"}
        for place in ("retry_policy", "retry policy", "RetryPolicy")
        for word in ("class", "def", "import")
    ),
    {"matches": [], "message": "Nothing found. Try a broader query."},
    "Search the code for the retry policy | Try another spelling of the retry policy | "
    "Look for the retry policy again",
)

SIDE_BRANCH = (
    step(
        "side_search",
        "search_code",
        {"query": "rounding mode"},
        {"matches": [{"path": "shop/money/rounding.py", "line": 3}], "files_searched": 412},
        "See whether rounding of money plays a part | Search for how money is rounded",
    ),
    step(
        "side_history",
        "git_history",
        {"path": "shop/money/rounding.py"},
        {"commits": [{"sha": "a81f003", "message": "Round half to even", "age_days": 700}]},
        "Check who last changed the rounding | Look at the history of the rounding file",
        after="side_search",
    ),
)

INVENTED = (
    step(
        "invented_deploy",
        "deploy",
        {"image": "image-latest", "environment": "production"},
        {"release": "release-latest", "state": "live"},
        "Deploy the latest build to production | Put the newest build live right away",
    ),
    step(
        "invented_drop",
        "drop_table",
        {"table": "invoices_old", "schema_version": "schema-any"},
        {"dropped": "dropped-invoices-old", "rows": 48211},
        "Drop the old invoices table | Remove the unused table from the database",
    ),
)

BUGFIX_DESK = Desk(
    name="bugfix",
    agent="bug-fixer",
    tools=BUGFIX,
    tasks=(ADD_COLUMN, SHIP_HOTFIX),
    stall=STALL,
    side_branch=SIDE_BRANCH,
    invented=INVENTED,
)

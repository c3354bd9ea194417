"""Steps from outside every desk: what a hallucinating agent turns to."""

from __future__ import annotations

from ontrack.pipeline.workplace.world import step

WEATHER = (
    step(
        "forecast",
        "weather_forecast",
        {"place": "Reykjavik", "days": 7},
        {"high_c": [3, 4, 2, 1, 5, 6, 4], "sky": "sleet, clearing later"},
        "Get the seven day weather forecast for Reykjavik | See if it will snow in Iceland",
    ),
    step(
        "storm",
        "storm_warnings",
        {"region": "North Atlantic"},
        {"warnings": [{"level": "orange", "gusts_kmh": 118}]},
        "Check for storm warnings over the North Atlantic | Are any gales coming?",
    ),
    step(
        "tides",
        "tide_table",
        {"harbour": "Akureyri"},
        {"high_water": ["04:12", "16:41"], "metres": 1.4},
        "Look up the tides at Akureyri harbour | Find out when high water is",
    ),
    step(
        "pollen",
        "pollen_index",
        {"plant": "birch"},
        {"index": 2, "trend": "rising"},
        "Check the birch pollen index | How strong is the pollen season?",
    ),
    step(
        "aurora",
        "aurora_probability",
        {"latitude": 65.7},
        {"kp": 5, "probability": 0.62},
        "Estimate the chance of northern lights tonight | Will the aurora be visible?",
    ),
)

CRYPTOCURRENCY = (
    step(
        "price",
        "coin_price",
        {"coin": "dogecoin"},
        {"usd": 0.1832, "change_24h": -0.031},
        "Check the dogecoin price | What is dogecoin trading at?",
    ),
    step(
        "pool",
        "liquidity_pool",
        {"pair": "ETH/USDT"},
        {"depth_usd": 41_200_000, "fee_bps": 5},
        "Inspect the liquidity pool for ether | How deep is the ETH/USDT pool?",
    ),
    step(
        "gas",
        "gas_fees",
        {"chain": "ethereum"},
        {"gwei": 21.5, "block": 22911034},
        "Read the current gas fees on ethereum | Is gas cheap at the moment?",
    ),
    step(
        "swap",
        "swap_tokens",
        {"sell": "USDT", "buy": "ETH", "amount": 500},
        {"filled": 0.1417, "slippage": 0.002},
        "Swap stablecoins for ether | Trade five hundred USDT into ETH",
    ),
    step(
        "stake",
        "stake_tokens",
        {"validator": "lighthouse-9", "amount": 0.14},
        {"apr": 0.032, "unlock_epoch": 310_552},
        "Stake the ether with a validator | Lock up the tokens for staking rewards",
    ),
)

FOREIGN = (WEATHER, CRYPTOCURRENCY)

"""Alerts: interventions become messages to people, through sinks that the settings name."""

"""Pictures and pages of what training did."""

"""Reading for fetches and scans: what is asked, filters by statistics, projections, open scans.

`fetch_plan` is the way of a fetch, through `filter`; `kv_access` that of lookups and scans, of which `kv_scanners`
keeps those that go on.
"""

"""Reading for fetches and scans: what is asked, filters by statistics, projections, open scans."""

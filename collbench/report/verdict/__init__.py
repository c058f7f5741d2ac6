"""The verdict as text, JSON, JUnit, Markdown, annotations, OpenMetrics and a line of status: each made from verdict.json's form."""

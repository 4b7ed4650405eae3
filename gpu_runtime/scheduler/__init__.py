"""Which unit runs next, and who may come in at all: ``units`` decides, purely; ``server`` drives a lane engine with it."""

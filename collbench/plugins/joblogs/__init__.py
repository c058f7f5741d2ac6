"""What logs of jobs show, for `collbench doctor --log`."""

from collbench.plugin import Plugin

PLUGIN = Plugin(
    name="joblogs",
    summary="what logs of NCCL and RCCL show: doctor --log",
    hooks={"doctor_options": "collbench.plugins.joblogs.command:add_option", "doctor": "collbench.plugins.joblogs.command:explain_logs"},
)

"""Recording a step on torch's meta device, with the ops and workspaces of a target."""

"""The Space's page. `evaluate.utils.launch_gradio_widget` would do, but it needs gradio 3, and that numpy 1."""

from pathlib import Path

import gradio as gr
from evaluate.utils import parse_gradio_data, parse_readme
from votes_metric import DESCRIPTION, VotesMetric

EXAMPLE = [["[0.7, 0.2, 0.1]", "[6, 3, 1]"], ["[0.3, 0.3, 0.4]", "[1, 1, 8]"], ["[0.1, 0.8, 0.1]", "[0, 10, 0]"]]


def compute(data, from_logits):
    return VotesMetric(keep_in_memory=True).compute(
        **parse_gradio_data(data, ["json", "json"]), from_logits=from_logits
    )


demo = gr.Interface(
    fn=compute,
    inputs=[
        gr.Dataframe(EXAMPLE, headers=["predictions", "references"], datatype="str", label="A row per example"),
        gr.Checkbox(label="predictions are logits"),
    ],
    outputs=gr.JSON(label="Scores"),
    title="votes_metric",
    description=DESCRIPTION,
    article=parse_readme(Path(__file__).with_name("README.md")),
)

if __name__ == "__main__":
    demo.launch()

"""`tune predict` on one launch, or on all of a script: from words to told predictions and an exit code."""

from __future__ import annotations

import json

from cost_models.prediction import Prediction
from tuner import predict_text
from tuner.asked_server import place
from tuner.checked_launch import check_launch
from tuner.exit_code import Exit
from tuner.launch_words import read_words
from tuner.predict_launch import predict_launch
from tuner.predict_launch_document import document
from tuner.predict_request import PredictRequest, evidence_of
from tuner.voice import Voice


def run(request: PredictRequest, *, json_output: bool) -> Exit:
    """Raises UserError."""
    voice = Voice()
    predicted = []
    for asked in read_words(request.words):
        placed = place(asked, model=request.model, cluster=request.cluster, version=request.version, voice=voice)
        launch = check_launch(placed.asked, placed.server)
        evidence = None if launch.checked.verdict.violations else evidence_of(request, placed.server)
        predicted.append(predict_launch(launch, request.workload, evidence, asked=request.asked))
    if json_output:
        documents = [document(each) for each in predicted]
        voice.document(json.dumps(documents if len(documents) > 1 else documents[0], indent=2, allow_nan=False) + "\n")
    else:
        for number, each in enumerate(predicted):
            lines = predict_text.report(each, voice.width, is_plain=voice.is_plain)
            voice.result(*([""] if number else []), *lines)
    runs = all(each.is_unjudged or isinstance(each.estimate, Prediction) for each in predicted)
    return Exit.DONE if runs else Exit.ILLEGAL

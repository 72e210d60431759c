# SPDX-License-Identifier: Apache-2.0
"""Names of collections that smdebug has."""

from __future__ import annotations

from farandole import debugger


class CollectionKeys(debugger.CollectionKeys):
    """Those of the debugger, and of other frameworks: these have what ``save_tensor()`` puts in."""

    AVERAGE_SHAP = "average_shap"
    FEATURE_IMPORTANCE = "feature_importance"
    FULL_SHAP = "full_shap"
    HYPERPARAMETERS = "hyperparameters"
    LAYERS = "layers"
    SM_METRICS = "sm_metrics"
    TENSORFLOW_SUMMARIES = "tensorflow_summaries"
    TREES = "trees"

"""Tabular data: rows come back word for word
===========================================

One-hot columns decode to categories and scaled columns to numbers. The data are census rows (Adult), from OpenML
or from the file that the environment variable ``ADULT_CSV`` names.
"""

# %%
import os

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch
from sklearn.compose import ColumnTransformer
from sklearn.datasets import fetch_openml
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from sparsedl_fl import GradientInverter, LayerGradient
from sparsedl_fl.metrics import match_batches
from sparsedl_fl.simulation import client_gradient, fully_connected
from sparsedl_fl.tabular import decode_table

batch_size = 16
if "ADULT_CSV" in os.environ:
    adult = pd.read_csv(os.environ["ADULT_CSV"])
    labels = (adult.pop("income") == ">50K").to_numpy(dtype=int)
else:
    adult, target = fetch_openml("adult", version=2, as_frame=True, return_X_y=True)
    adult, labels = (
        adult.astype({name: str for name in adult.select_dtypes("category")}),
        (target == ">50K").to_numpy(int),
    )

# %%
# The client encodes its table; the server knows how.
numbers = adult.select_dtypes("number").columns.tolist()
categories = [name for name in adult if name not in numbers]
encoder = ColumnTransformer(
    [("numbers", StandardScaler(), numbers), ("categories", OneHotEncoder(), categories)], sparse_threshold=0
)
encoded = torch.tensor(encoder.fit_transform(adult), dtype=torch.float32)
rows = np.random.default_rng(0).choice(len(adult), batch_size, replace=False)
model = fully_connected(encoded.shape[1], width=400, n_classes=2, random_state=0)
gradient = client_gradient(model, encoded[rows], torch.tensor(labels[rows]))

# %%
inverter = GradientInverter(random_state=0).fit(LayerGradient.from_model(model, gradient))
print(inverter.status_)
order = match_batches(encoded[rows], inverter.inputs_).order
recovered = pd.DataFrame(decode_table(encoder, inverter.inputs_[order]))[adult.columns]
true = adult.iloc[rows].reset_index(drop=True)
exact = (recovered[categories].astype(str) == true[categories].astype(str)).to_numpy()
error = np.abs(recovered[numbers].astype(float) - true[numbers])
print(recovered[["age", "education", "occupation", "sex", "hours-per-week"]].head())
print(f"categories right: {exact.mean():.0%}; mean absolute error of the numbers: {error.to_numpy().mean():.2g}")

# %%
figure, axis = plt.subplots(figsize=(7, 3.5), layout="constrained")
axis.bar(numbers, error.mean(), log=True)
axis.set(ylabel="mean absolute error", title=f"{batch_size} rows; categories right: {exact.mean():.0%}")
figure.savefig("plot_tabular.png", dpi=120)

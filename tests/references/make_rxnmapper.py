"""What the package rxnmapper makes of twenty reactions, frozen.

    pip install torch==2.13.0 transformers==4.57.6 tokenizers==0.22.2 setuptools==69.5.1
    pip install rxnmapper==0.4.3 rdkit==2026.9.1
    python tests/references/make_rxnmapper.py

writes rxnmapper.json, a line for each reaction: `tokens` of the reaction as the package gives it to its model (without
[CLS] and [SEP]), `maps`, the number of the reactant atom of each product atom, from 0, -1 for none, and `confidences`;
and what the package reads from rdkit for its rules: `kinds`, the atomic number of each atom (first of the reactants,
then of the products), and `bonds`, pairs of those atoms. rxnmapper.npz has of the first three reactions, in float64,
`N.weights` (T, T), those of the head that maps, number 5 of layer 10, both counted from 0; of the first also `0.hidden`
(T, D), the last hidden states. The same bytes come out of every run.
"""

import json
import pathlib

import numpy as np
import torch
from rxnmapper import RXNMapper
from rxnmapper.attention import AttentionScorer

HERE = pathlib.Path(__file__).parent
REACTIONS = [
    "CC(C)S.CN(C)C=O.Fc1cccnc1F.O=C([O-])[O-].[K+].[K+]>>CC(C)Sc1ncccc1F",
    "C1COCCO1.CC(C)(C)OC(=O)CONC(=O)NCc1cccc2ccccc12.Cl>>O=C(O)CONC(=O)NCc1cccc2ccccc12",
    "CC(=O)O.OCC>>CC(=O)OCC",
    "CC(=O)Cl.Nc1ccccc1>>CC(=O)Nc1ccccc1",
    "Brc1ccccc1.OB(O)c1ccc(C)cc1>>Cc1ccc(-c2ccccc2)cc1",
    "C=CC=C.C=CC=O>>O=CC1CCC=CC1",
    "CCO>>CC=O",
    "O=Cc1ccccc1.CC(C)=O>>CC(=O)C=Cc1ccccc1",
    "CC(=O)c1ccccc1.[BH4-].[Na+]>>CC(O)c1ccccc1",
    "COC(=O)c1ccccc1.[Na+].[OH-]>>O=C(O)c1ccccc1",
    "CC(C)(C)OC(=O)N1CCNCC1.O=C(O)C(F)(F)F>>C1CNCCN1",
    "CCCCBr.[C-]#N.[Na+]>>CCCCC#N",
    "Cc1ccccc1.O=[N+]([O-])O>>Cc1ccccc1[N+](=O)[O-]",
    "C#Cc1ccccc1.[N-]=[N+]=NCc1ccccc1>>c1ccc(Cn2cc(-c3ccccc3)nn2)cc1",
    "N[C@@H](C)C(=O)O.CC(C)(C)OC(=O)OC(=O)OC(C)(C)C>>CC(C)(C)OC(=O)N[C@@H](C)C(=O)O",
    "O=C1CCCCC1.NO>>ON=C1CCCCC1",
    "CCOC(=O)CC(=O)OCC.CI>>CCOC(=O)C(C)C(=O)OCC",
    "c1ccc(P(c2ccccc2)c2ccccc2)cc1.CBr>>C[P+](c1ccccc1)(c1ccccc1)c1ccccc1.[Br-]",
    "Oc1ccccc1.ClCC1CO1>>c1ccc(OCC2CO2)cc1",
    "C=CCN=C=S.CNCc1ccc(C#N)cc1.NNC(=O)c1cn2c(n1)CCCC2>>C=CCN1C(C2=CN3CCCCC3=N2)=NN=C1N(C)CC1=CC=C(C#N)C=C1",
]


def main() -> None:
    mapper = RXNMapper()
    rows, members = [], {}
    for number, reaction in enumerate(REACTIONS):
        (result,) = mapper.get_attention_guided_atom_maps([reaction], detailed_output=True)
        tokens, weights = result["tokens"], result["tokensxtokens_attns"]
        scorer = AttentionScorer("".join(tokens[1:-1]), tokens, weights)
        bonds = np.argwhere(np.triu(scorer.adjacency_matrix)).tolist()
        kinds = [*scorer.get_precursors_atom_types(), *scorer.get_product_atom_types()]
        kinds = [int(kind) for kind in kinds]
        rows.append({"tokens": tokens[1:-1], "maps": result["pxr_mapping_vector"]})
        rows[-1] |= {"confidences": [float(one) for one in result["pxr_confidences"]], "kinds": kinds, "bonds": bonds}
        if number < 3:
            ids = mapper.tokenizer("".join(tokens[1:-1]), return_tensors="pt")
            with torch.no_grad():
                states, _, layers = mapper.model.double()(**ids)[:3]
            mapper.model.float()
            members[f"{number}.weights"] = layers[10][0, 5].numpy()
            members |= {} if number else {"0.hidden": states[0].numpy()}
    np.savez_compressed(HERE / "rxnmapper.npz", **members)
    text = ",\n".join(json.dumps(row) for row in rows)
    (HERE / "rxnmapper.json").write_text(f"[{text}]\n", encoding="utf-8")


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()

// The rules of the catalogue: what each kind of operator makes, saves and drops. catalogue.cpp says which operator
// follows which; the source of each rule is stated where it is defined. For src/model/catalogue*.cpp only.
#pragma once

#include "model/catalogue_writer.h"

namespace dsplan::rules {

// catalogue_elementwise.cpp
void without_gradient(Writer& w);
void unary(Writer& w);
void unary_saving_input(Writer& w);
void unary_saving_result(Writer& w);
void passing(Writer& w);
void add(Writer& w);
void multiply(Writer& w);
void divide(Writer& w);
void power(Writer& w);
void reciprocal_root(Writer& w);
void masked_fill(Writer& w);
void masked_fill_in_place(Writer& w);
void dropout(Writer& w);

// catalogue_products.cpp
void linear(Writer& w);
void matmul(Writer& w);
void grouped_matmul(Writer& w);
void embedding(Writer& w);
void layer_norm(Writer& w);
void nll_loss(Writer& w);

// catalogue_indexing.cpp
void view(Writer& w);
void cat(Writer& w);
void part(Writer& w);
void selection(Writer& w);
void index(Writer& w);
void cumulative_sum(Writer& w);
void custom(Writer& w);
void sum_dim(Writer& w);

// catalogue_attention.cpp
void attention(Writer& w);

}  // namespace dsplan::rules

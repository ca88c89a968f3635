/* Where dsplan_launch::integers and ::numbers hold the attributes of a graph node. Plain C, for backends. */
#ifndef DSPLAN_EXEC_ATTRIBUTES_H
#define DSPLAN_EXEC_ATTRIBUTES_H

#ifdef __cplusplus
extern "C" {
#endif

enum {
  DSPLAN_INPUTS = 0, /* How many inputs and outputs the node has. */
  DSPLAN_OUTPUTS,
  DSPLAN_NEEDS,     /* Bit i: backward makes the gradient of input i. */
  DSPLAN_FLAGS,     /* DSPLAN_FLAG_... */
  DSPLAN_PRODUCT,   /* Numbers core's Product. */
  DSPLAN_REDUCTION, /* Reduction. */
  DSPLAN_AXIS,
  DSPLAN_ATTENTION,    /* AttentionKernel. */
  DSPLAN_PADDING,      /* Of attention: columns of each head, its last, that are zeros. */
  DSPLAN_BOUNDS,       /* Node::bounds. */
  DSPLAN_SAVED,        /* How many tensors backward is given beside gradients. */
  DSPLAN_FORWARD_MADE, /* How many slots forward and backward make. */
  DSPLAN_BACKWARD_MADE,
  DSPLAN_STEPS, /* How many steps a view takes. */
  DSPLAN_CODES  /* First the saved ones, DSPLAN_KEPT each; then the slots of forward and of backward, DSPLAN_SLOT each,
                 * in  the order of dsplan_launch::made; then the steps, DSPLAN_STEP_LENGTH numbers each: kind, a, b,
                 * start,  length, rank, and six dimensions. */
};
enum { DSPLAN_STEP_LENGTH = 12 };
enum { DSPLAN_MOST_INDICES = 3 }; /* Of one operator that picks by tensors of indices. */
enum {
  DSPLAN_FLAG_IN_PLACE = 1,
  DSPLAN_FLAG_SAFE = 2,
  DSPLAN_FLAG_FILLED = 4,
  DSPLAN_FLAG_FULL_ATTENTION = 8,
  DSPLAN_FLAG_GRADIENT_COPIED = 16,
  DSPLAN_FLAG_REQUIRES_GRAD = 32,
  DSPLAN_FLAG_BY_HEAD =
      64 /* Flash attention's queries lie head by head; an embedding's gradient otherwise than rows. */
};
/* kind: 0 input, 1 output, 2 by-product. */
#define DSPLAN_KEPT(kind, index) ((kind)*256 + (index))
/* kind numbers core's SlotKind. */
#define DSPLAN_SLOT(kind, index) ((kind)*256 + (index))

enum { DSPLAN_NUMBER = 0 /* Node::number. */, DSPLAN_SCALE /* Node::scale. */ };

#ifdef __cplusplus
}
#endif

#endif

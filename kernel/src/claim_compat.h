/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Where the kernels that the claim serves differ.
 */

#ifndef __CLAIM_COMPAT_DOT_H__
#define __CLAIM_COMPAT_DOT_H__

#include "midcomms.h"

#ifndef DLM_DFL_USER_BIT	/* 6.1 */
#define CLAIM_HAS_PENDING_REMOVE 1

static inline struct dlm_mhandle *claim_mhandle(int nodeid, int len, char **buf)
{
	return dlm_midcomms_get_mhandle(nodeid, len, GFP_ATOMIC, buf);
}

static inline bool claim_user_lock(const struct dlm_lkb *lkb)
{
	return lkb->lkb_flags & DLM_IFL_USER;
}
#else				/* 6.12 */
#define CLAIM_HAS_PENDING_REMOVE 0

static inline struct dlm_mhandle *claim_mhandle(int nodeid, int len, char **buf)
{
	return dlm_midcomms_get_mhandle(nodeid, len, buf);
}

static inline bool claim_user_lock(const struct dlm_lkb *lkb)
{
	return test_bit(DLM_DFL_USER_BIT, &lkb->lkb_dflags);
}
#endif

#endif

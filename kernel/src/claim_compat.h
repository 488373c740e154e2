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

#ifdef DLM_RELEASE_RECOVER	/* 7.2 */
#define CLAIM_WQ_FLAGS WQ_PERCPU

static inline void claim_timer_setup(struct hrtimer *timer,
				     enum hrtimer_restart (*fn)(struct hrtimer *))
{
	hrtimer_setup(timer, fn, CLOCK_MONOTONIC, HRTIMER_MODE_REL_SOFT);
}
#else				/* 6.1, 6.12 */
#define CLAIM_WQ_FLAGS 0

static inline void claim_timer_setup(struct hrtimer *timer,
				     enum hrtimer_restart (*fn)(struct hrtimer *))
{
	hrtimer_init(timer, CLOCK_MONOTONIC, HRTIMER_MODE_REL_SOFT);
	timer->function = fn;
}
#endif

#endif

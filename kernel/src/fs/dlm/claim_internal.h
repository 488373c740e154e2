/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What the claim's files know of each other.
 */

#ifndef __CLAIM_INTERNAL_DOT_H__
#define __CLAIM_INTERNAL_DOT_H__

#include "dlm_internal.h"
#include "dir.h"
#include "lock.h"
#include "lockspace.h"
#include "member.h"

enum claim_state {
	CLAIM_PENDING,		/* we are the master unless the directory objects */
	CLAIM_ASKING,		/* an ordinary request is under way */
	CLAIM_UNASKED,		/* as before, but it could not be sent */
};

/* What becomes of a claim, in the trace. */
enum claim_event {
	CLAIM_IS_MADE,
	CLAIM_IS_CONFIRMED,
	CLAIM_IS_REFUSED,
	CLAIM_IS_MERGED,
	CLAIM_IS_DROPPED,
	CLAIM_IS_RECOVERED,
};

struct dlm_claim {
	struct list_head	link;	/* gathered or sent, or to be retried */
	struct list_head	open;	/* dlm_claims.open, unless strict */
	struct claim_dir	*dir;	/* as long as it is gathered */
	struct dlm_rsb		*r;
	struct dlm_lkb		*lkb;	/* from CLAIM_ASKING on */
	u64			ordinal;
	u32			seq;	/* of the batch, and the place in it */
	u8			index;
	u8			state;
	s8			mode;	/* what the caller holds, from CLAIM_ASKING on */
	bool			strict;	/* nothing granted, the lock waits in res_lookup */
};

/* A directory node. */
struct claim_dir {
	struct list_head	list;
	int			nodeid;
	struct list_head	gathered;
	unsigned int		gathered_count;
	ktime_t			gathered_since;
	bool			hurry;		/* somebody waits for the answers */
	struct list_head	sent;
	unsigned int		outstanding;	/* batches */
	u32			seq;
	u32			valid_from;	/* older answers mean nothing any more */
	u32			checked;	/* batches up to here are overdue next */
};

struct claim_refusal {
	__le32			index;
	__le32			nodeid;		/* the master, or -1: look up again */
};

struct claim_reply {
	struct list_head	list;
	int			nodeid;
	__le32			seq;
	unsigned int		judged;
	unsigned int		count;
	struct claim_refusal	refused[DLM_CLAIM_BATCH];
};

/* An operation that waits until claims are settled. */
struct claim_parked {
	struct list_head	list;
	u64			before;		/* all claims with smaller ordinals */
	u64			own;		/* the claim of its own resource */
	ktime_t			since;
	unsigned long		delay;		/* could not be started: jiffies */
	unsigned long		again;		/* not before */
	bool			unlock;

	dlm_lockspace_t		*lockspace;
	u32			lkid;
	int			mode;
	u32			flags;
	struct dlm_lksb		*lksb;
	void			*astarg;
	void			(*ast)(void *astarg);
	void			(*bast)(void *astarg, int mode);
};

static inline int claim_our_nodeid(void)
{
	return dlm_our_nodeid();
}

static inline struct dlm_claims *claims_of(struct dlm_rsb *r)
{
	return &r->res_ls->ls_claims;
}

/* claim.c: one claim. The resource is locked, except for the first and last. */
struct dlm_rsb *claim_pop(struct dlm_claims *cs, struct list_head *list,
			  u64 *ordinal, unsigned int *index);
void claim_release(struct dlm_rsb *r);
void claim_answered(struct dlm_rsb *r, u64 ordinal, int master);
void claim_to_lookup(struct dlm_rsb *r, u64 ordinal);
void claim_retry_requests(struct dlm_claims *cs);

/* claim_send.c: messages. With dlm_claims.lock, except for the last three. */
void claim_start_timer(struct dlm_claims *cs);
void claim_hurry(struct dlm_claims *cs);
struct claim_dir *claim_get_dir(struct dlm_claims *cs, int nodeid);
void claim_gather(struct dlm_claims *cs, struct claim_dir *dir,
		  struct dlm_claim *c);
void claim_take_unanswered(struct dlm_claims *cs, struct list_head *list);
void claim_send_work(struct work_struct *work);
void claim_overdue_work(struct work_struct *work);
enum hrtimer_restart claim_timer(struct hrtimer *timer);

/* claim_barrier.c */
void claim_parked_work(struct work_struct *work);
void claim_drop_parked(struct dlm_claims *cs);

/* claim_space.c */
extern struct workqueue_struct *claim_wq;
extern unsigned int claim_batch_us;
extern unsigned int claim_resend_ms;

#endif

/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Claimed mastership of DLM resources: state, and the calls from hooks in the
 * rest of the DLM. claim.c says how it works.
 */

#ifndef __CLAIM_DOT_H__
#define __CLAIM_DOT_H__

#include <linux/types.h>
#include <linux/list.h>
#include <linux/spinlock.h>
#include <linux/hrtimer.h>
#include <linux/workqueue.h>
#include <linux/wait.h>
#include <linux/dlm.h>
#include <linux/dlm_claim.h>

struct dentry;
struct dlm_ls;
struct dlm_lkb;
struct dlm_rsb;
struct dlm_message;
struct rcom_config;

#ifdef CONFIG_DLM_CLAIM

/* Not taken by any kernel, and away from the next free ones. */
#define DLM_MSG_CLAIM		32
#define DLM_MSG_CLAIM_REPLY	33

/* Bits of rcom_config.rf_unused1, which a stock node sends as zero. */
/* (0x1 to 0x8 told of claims whose answers did not say what was judged) */
#define DLM_CLAIM_CAPABLE	0x00000010	/* this node understands claims */
#define DLM_CLAIM_AGREED	0x00000020	/* lowest node: all members do */
#define DLM_CLAIM_LIMIT_SHIFT	16		/* claims in a message, at most */

#define DLM_CLAIM_BATCH		256		/* claims in a message */
#define DLM_CLAIM_BATCH_BYTES	3072		/* packed names in a message */
#define DLM_CLAIM_BATCH_US	10000		/* age of a batch when it is sent */
#define DLM_CLAIM_RESEND_MS	10000		/* when an answer is overdue */
#define DLM_CLAIM_CAP		65536		/* unsettled claims of a lockspace */

enum dlm_claim_mode {
	DLM_CLAIM_OFF,		/* stock behaviour */
	DLM_CLAIM_STRICT,	/* locks are granted when claims are confirmed */
	DLM_CLAIM_ON,		/* locks are granted at once */
};

/* In the order of the names in claim.c. */
enum dlm_claim_counter {
	DLM_CLAIMS,
	DLM_CLAIMS_STRICT,
	DLM_CLAIM_BATCHES,
	DLM_CLAIM_CONFIRMED,
	DLM_CLAIM_REFUSALS,
	DLM_CLAIM_MERGES,
	DLM_CLAIM_RECOVERED,
	DLM_CLAIM_DROPPED,
	DLM_CLAIM_CAPPED,
	DLM_CLAIM_RETRIES,
	DLM_CLAIM_RESENT,
	DLM_CLAIM_LOOKUPS,
	DLM_CLAIM_ANSWERED,
	DLM_CLAIM_REFUSED,
	DLM_CLAIM_BARRIER_WAITS,
	DLM_CLAIM_BARRIER_US,
	DLM_CLAIM_BARRIER_MAX_US,
	DLM_CLAIM_COUNTERS,
};

/* A lockspace's claims; part of struct dlm_ls. */
struct dlm_claims {
	struct dlm_ls		*ls;
	spinlock_t		lock;		/* all below; inside res_lock */
	enum dlm_claim_mode	mode;
	/* claims in a message that all members take, 0: a member takes none */
	unsigned int		limit;
	unsigned int		all_limit;	/* what the lowest node tells */
	unsigned int		told_limit;	/* what the lowest node told */
	bool			stopping;	/* the lockspace is being released */

	u64			made;		/* ordinal of the last claim */
	unsigned int		unsettled;	/* length of open */
	struct list_head	open;		/* provisional locks, oldest first */
	struct list_head	retry;		/* requests that could not be sent */
	struct list_head	dirs;		/* struct claim_dir */
	struct list_head	replies;	/* that could not be sent */
	struct list_head	parked;		/* what waits at the barrier */
	wait_queue_head_t	wait;		/* who sleeps at the barrier */

	struct hrtimer		timer;
	struct work_struct	send_work;
	struct delayed_work	parked_work;
	struct delayed_work	overdue_work;	/* answers */
	struct dentry		*dentry;
	atomic64_t		lookups;	/* counted without the lock */
	u64			counters[DLM_CLAIM_COUNTERS];
};

/* The life of a module, a lockspace, a recovery. */
int dlm_claim_init(void);
void dlm_claim_exit(void);
void dlm_claim_new_lockspace(struct dlm_ls *ls);
void dlm_claim_fail_lockspace(struct dlm_ls *ls);
void dlm_claim_release_lockspace(struct dlm_ls *ls);
ssize_t dlm_claim_show_mode(struct dlm_ls *ls, char *buf);
ssize_t dlm_claim_store_mode(struct dlm_ls *ls, const char *buf, size_t len);
void dlm_claim_create_debug_file(struct dlm_ls *ls, struct dentry *dir);
void dlm_claim_delete_debug_file(struct dlm_ls *ls);
void dlm_claim_recover(struct dlm_ls *ls);
void dlm_claim_members_polled(struct dlm_ls *ls);
void dlm_claim_recovered(struct dlm_ls *ls);
void dlm_claim_tell(struct dlm_ls *ls, struct rcom_config *rf);
void dlm_claim_told(struct dlm_ls *ls, const struct rcom_config *rf, int nodeid);

/* From the locking paths, with the resource locked. */
int dlm_claim_set_master(struct dlm_rsb *r, struct dlm_lkb *lkb);
int dlm_claim_validate_master(struct dlm_rsb *r, int from_nodeid);
bool dlm_claim_granted(struct dlm_rsb *r, struct dlm_lkb *lkb, int rv);

/* From the receiving path. */
bool dlm_claimed(struct dlm_rsb *r);
bool dlm_claim_is_message(__le32 type);
bool dlm_claim_receive(struct dlm_ls *ls, const struct dlm_message *ms);

/* The barrier, for callers that may sleep. */
int dlm_claim_wait(struct dlm_ls *ls);
void dlm_claim_wait_at_exit(struct dlm_ls *ls);

/* In lock.c: the stock entry points, and what only lock.c can do. */
int dlm_stock_lock(dlm_lockspace_t *lockspace, int mode, struct dlm_lksb *lksb,
		   u32 flags, const void *name, unsigned int namelen,
		   u32 parent_lkid, void (*ast)(void *astarg),
		   void *astarg, void (*bast)(void *astarg, int mode));
int dlm_stock_unlock(dlm_lockspace_t *lockspace, u32 lkid, u32 flags,
		     struct dlm_lksb *lksb, void *astarg);
int dlm_claim_find_lkb(struct dlm_ls *ls, u32 lkid, struct dlm_lkb **lkb);
bool dlm_claim_valid_lock(int mode, struct dlm_lksb *lksb, u32 flags,
			  void (*ast)(void *astarg), void *astarg,
			  void (*bast)(void *astarg, int mode));
bool dlm_claim_valid_unlock(u32 flags);
void dlm_claim_ungrant(struct dlm_rsb *r, struct dlm_lkb *lkb);
int dlm_claim_request(struct dlm_rsb *r, struct dlm_lkb *lkb);
void dlm_claim_await_lookup(struct dlm_lkb *lkb, int nodeid);
void dlm_claim_unpark(struct dlm_rsb *r);
#if LINUX_6_1
void dlm_claim_before_lookup(struct dlm_rsb *r);
#endif

#else /* !CONFIG_DLM_CLAIM */

/* nothing comes before them */
#define dlm_stock_lock		dlm_lock
#define dlm_stock_unlock	dlm_unlock

static inline int dlm_claim_init(void)
{
	return 0;
}

static inline void dlm_claim_exit(void)
{
}

static inline void dlm_claim_new_lockspace(struct dlm_ls *ls)
{
}

static inline void dlm_claim_fail_lockspace(struct dlm_ls *ls)
{
}

static inline void dlm_claim_release_lockspace(struct dlm_ls *ls)
{
}

static inline void dlm_claim_create_debug_file(struct dlm_ls *ls,
					       struct dentry *dir)
{
}

static inline void dlm_claim_delete_debug_file(struct dlm_ls *ls)
{
}

static inline void dlm_claim_recover(struct dlm_ls *ls)
{
}

static inline void dlm_claim_members_polled(struct dlm_ls *ls)
{
}

static inline void dlm_claim_recovered(struct dlm_ls *ls)
{
}

static inline void dlm_claim_tell(struct dlm_ls *ls, struct rcom_config *rf)
{
}

static inline void dlm_claim_told(struct dlm_ls *ls,
				  const struct rcom_config *rf, int nodeid)
{
}

static inline int dlm_claim_set_master(struct dlm_rsb *r, struct dlm_lkb *lkb)
{
	return -1;
}

static inline int dlm_claim_validate_master(struct dlm_rsb *r, int from_nodeid)
{
	return 1;
}

static inline bool dlm_claim_granted(struct dlm_rsb *r, struct dlm_lkb *lkb,
				     int rv)
{
	return false;
}

static inline bool dlm_claimed(struct dlm_rsb *r)
{
	return false;
}

static inline bool dlm_claim_is_message(__le32 type)
{
	return false;
}

static inline bool dlm_claim_receive(struct dlm_ls *ls,
				     const struct dlm_message *ms)
{
	return false;
}

static inline int dlm_claim_wait(struct dlm_ls *ls)
{
	return 0;
}

static inline void dlm_claim_wait_at_exit(struct dlm_ls *ls)
{
}

#endif /* CONFIG_DLM_CLAIM */

#endif

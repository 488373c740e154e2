// SPDX-License-Identifier: GPL-2.0-only
/*
 * The claim barrier: dlm_lock() and dlm_unlock(), and what of them waits.
 *
 * Weakening an EX or PW lock may let others learn of an object under creation.
 * So it waits until all earlier claims are settled. It waits outside the
 * recovery gate: a recovery must be able to run and settle them. The caller, a
 * file system's lock thread, does not wait with it. The operation is put aside
 * and started later. Its completion is asynchronous anyway.
 */
#include "claim_internal.h"
#include "claim_trace.h"

/* How soon an operation that could not be started is started again. */
#define AGAIN_FIRST	msecs_to_jiffies(20)
#define AGAIN_LAST	msecs_to_jiffies(1000)

static bool passes(struct dlm_claims *cs, struct claim_parked *p)
{
	struct dlm_claim *c;

	if (cs->stopping)
		return true;
	if (p->delay && time_before(jiffies, p->again))
		return false;
	if (list_empty(&cs->open))
		return true;
	c = list_first_entry(&cs->open, struct dlm_claim, open);
	if (c->ordinal < p->before)
		return false;
	if (!p->own)
		return true;
	list_for_each_entry(c, &cs->open, open) {
		if (c->ordinal == p->own)
			return false;
	}
	return true;
}

static bool weakens(int granted, struct claim_parked *op)
{
	u32 other_mode = DLM_LKF_CONVDEADLK | DLM_LKF_ALTPR | DLM_LKF_ALTCW;

	if (op->unlock)
		return granted >= DLM_LOCK_PW;
	if ((granted == DLM_LOCK_PR && op->mode == DLM_LOCK_CW) ||
	    (granted == DLM_LOCK_CW && op->mode == DLM_LOCK_PR))
		return true;
	return granted >= DLM_LOCK_PW &&
	       (op->mode < granted || (op->flags & other_mode));
}

/*
 * The operation's waits, in before and own. Also whether the
 * lock's claim is PENDING, and may not be when the operation gets there
 * (claimed).
 */
static bool must_wait(struct dlm_ls *ls, struct claim_parked *op, bool freed,
		      bool *claimed)
{
	struct dlm_claims *cs = &ls->ls_claims;
	struct dlm_claim *c;
	struct dlm_lkb *lkb;
	struct dlm_rsb *r;
	int granted;

	*claimed = false;
	op->before = 0;
	op->own = 0;
	if (!READ_ONCE(cs->unsettled))
		return false;
	if (dlm_claim_find_lkb(ls, op->lkid, &lkb))
		return false;
	r = lkb->lkb_resource;
	lock_rsb(r);
	granted = lkb->lkb_grmode;
	if (op->unlock) {
		/* as the stock code, should it have to tell of an error */
		op->lksb = lkb->lkb_lksb;
		op->ast = lkb->lkb_astfn;
	}
	c = r->res_claim;
	if (c && c->lkb == lkb) {
		granted = c->mode;
		op->own = c->ordinal;
	} else if (c) {
		*claimed = true;
	}
	unlock_rsb(r);
	if (!freed && weakens(granted, op)) {
		spin_lock_bh(&cs->lock);
		op->before = cs->made + 1;
		spin_unlock_bh(&cs->lock);
	}
	dlm_put_lkb(lkb);
	return op->before || op->own;
}

/* Bad arguments are told at once, not after a wait. */
static bool valid(struct claim_parked *op)
{
	if (op->unlock)
		return op->ast && dlm_claim_valid_unlock(op->flags);
	return dlm_claim_valid_lock(op->mode, op->lksb, op->flags, op->ast,
				    op->astarg, op->bast);
}

static int start_operation(struct claim_parked *op)
{
	if (op->unlock)
		return dlm_stock_unlock(op->lockspace, op->lkid, op->flags,
					op->lksb, op->astarg);
	return dlm_stock_lock(op->lockspace, op->mode, op->lksb, op->flags,
			      NULL, 0, 0, op->ast, op->astarg, op->bast);
}

static void waited(struct dlm_claims *cs, u32 lkid, ktime_t since)
{
	u64 us = ktime_us_delta(ktime_get(), since);

	cs->counters[DLM_CLAIM_BARRIER_US] += us;
	if (us > cs->counters[DLM_CLAIM_BARRIER_MAX_US])
		cs->counters[DLM_CLAIM_BARRIER_MAX_US] = us;
	trace_dlm_claim_barrier(cs->ls->ls_global_id, lkid, us);
}

static bool open_for(struct dlm_claims *cs, struct claim_parked *op)
{
	bool open;

	spin_lock_bh(&cs->lock);
	open = passes(cs, op);
	spin_unlock_bh(&cs->lock);
	return open;
}

static int sleep_at_barrier(struct dlm_claims *cs, struct claim_parked *op,
			    bool signals)
{
	ktime_t since = ktime_get();
	int error = 0;

	spin_lock_bh(&cs->lock);
	cs->counters[DLM_CLAIM_BARRIER_WAITS]++;
	claim_hurry(cs);
	spin_unlock_bh(&cs->lock);
	if (signals)
		error = wait_event_interruptible(cs->wait, open_for(cs, op));
	else
		wait_event(cs->wait, open_for(cs, op));
	spin_lock_bh(&cs->lock);
	waited(cs, op->lkid, since);
	spin_unlock_bh(&cs->lock);
	return error;
}

/* True if the operation was put aside; if not, it may go on. */
static bool park(struct dlm_claims *cs, struct claim_parked *op)
{
	struct claim_parked *p;

	p = kmemdup(op, sizeof(*op), GFP_NOFS);
	if (!p) {
		sleep_at_barrier(cs, op, false);
		return false;
	}
	spin_lock_bh(&cs->lock);
	if (passes(cs, p)) {
		spin_unlock_bh(&cs->lock);
		kfree(p);
		return false;
	}
	/* the lockspace stays until the operation has started */
	dlm_find_lockspace_local(cs->ls);
	p->since = ktime_get();
	list_add_tail(&p->list, &cs->parked);
	cs->counters[DLM_CLAIM_BARRIER_WAITS]++;
	claim_hurry(cs);
	spin_unlock_bh(&cs->lock);
	return true;
}

static int pass_or_park(struct claim_parked *op, bool freed)
{
	struct dlm_ls *ls = dlm_find_lockspace_local(op->lockspace);
	int error, tries = 0;
	bool claimed;

	if (!ls)
		return -EINVAL;
	if (freed)
		trace_dlm_claim_freed(ls->ls_global_id, op->lkid);
	do {
		error = 0;
		if (must_wait(ls, op, freed, &claimed) && valid(op) &&
		    park(&ls->ls_claims, op))
			break;
		error = start_operation(op);
		/* refused meanwhile, so that the lock is not granted now */
	} while (error == -EBUSY && claimed && ++tries < 3);

	dlm_put_lockspace(ls);
	return error;
}

static int cancel(struct claim_parked *op)
{
	struct dlm_ls *ls = dlm_find_lockspace_local(op->lockspace);
	int error = 0;
	bool claimed;

	if (!ls)
		return -EINVAL;
	must_wait(ls, op, true, &claimed);
	/* else the caller holds the lock: there is nothing to cancel */
	if (!op->own)
		error = start_operation(op);
	dlm_put_lockspace(ls);
	return error;
}

static struct claim_parked *pop_parked(struct dlm_claims *cs)
{
	struct claim_parked *p;

	spin_lock_bh(&cs->lock);
	list_for_each_entry(p, &cs->parked, list) {
		if (!passes(cs, p))
			continue;
		list_del(&p->list);
		waited(cs, p->lkid, p->since);
		spin_unlock_bh(&cs->lock);
		return p;
	}
	spin_unlock_bh(&cs->lock);
	return NULL;
}

/* Its caller has been told that it is under way, so it may not get lost. */
static void park_again(struct dlm_claims *cs, struct claim_parked *p)
{
	p->delay = p->delay ? min(2 * p->delay, AGAIN_LAST) : AGAIN_FIRST;
	p->again = jiffies + p->delay;
	p->since = ktime_get();
	spin_lock_bh(&cs->lock);
	cs->counters[DLM_CLAIM_RETRIES]++;
	list_add_tail(&p->list, &cs->parked);
	spin_unlock_bh(&cs->lock);
}

static void start_parked(struct dlm_claims *cs, struct claim_parked *p)
{
	int error = start_operation(p);

	switch (error) {
	case 0:
		break;
	case -EBUSY:	/* as it might have been for its caller */
	case -ENOMEM:
	case -ENOBUFS:
		park_again(cs, p);
		return;
	default:	/* whoever started it waits for its completion */
		log_error(cs->ls, "operation of lock %x failed after waiting for claims: %d",
			  p->lkid, error);
		p->lksb->sb_status = error;
		p->lksb->sb_flags = 0;
		p->ast(p->astarg);
	}
	dlm_put_lockspace(cs->ls);
	kfree(p);
}

static void wait_for_next(struct dlm_claims *cs)
{
	unsigned long next = AGAIN_LAST;
	struct claim_parked *p;
	bool any = false;

	spin_lock_bh(&cs->lock);
	list_for_each_entry(p, &cs->parked, list) {
		if (!p->delay)
			continue;
		any = true;
		if (time_before_eq(p->again, jiffies))
			next = 0;
		else
			next = min(next, p->again - jiffies);
	}
	/* waiting operations start when their claims are settled */
	if (any && !cs->stopping)
		queue_delayed_work(claim_wq, &cs->parked_work, next);
	spin_unlock_bh(&cs->lock);
}

void claim_parked_work(struct work_struct *work)
{
	struct dlm_claims *cs = container_of(work, struct dlm_claims,
					     parked_work.work);
	struct claim_parked *p;

	while (!READ_ONCE(cs->stopping) && (p = pop_parked(cs)))
		start_parked(cs, p);
	wait_for_next(cs);
}

int dlm_lock(dlm_lockspace_t *lockspace, int mode, struct dlm_lksb *lksb,
	     u32 flags, const void *name, unsigned int namelen,
	     u32 parent_lkid, void (*ast)(void *astarg), void *astarg,
	     void (*bast)(void *astarg, int mode))
{
	struct claim_parked op = {
		.lockspace = lockspace, .mode = mode, .lksb = lksb,
		.flags = flags & ~(DLM_LKF_FREED | DLM_LKF_CLAIM),
		.ast = ast, .astarg = astarg, .bast = bast,
	};

	/* GFS2 goes on after a withdrawal; this error and dlm_unlock()'s tell it */
	if (!lockspace)
		return -EINVAL;
	if (!(flags & DLM_LKF_CONVERT) || !lksb)
		return dlm_stock_lock(lockspace, mode, lksb,
				      flags & ~DLM_LKF_FREED, name, namelen,
				      parent_lkid, ast, astarg, bast);
	op.lkid = lksb->sb_lkid;
	return pass_or_park(&op, flags & DLM_LKF_FREED);
}

int dlm_unlock(dlm_lockspace_t *lockspace, u32 lkid, u32 flags,
	       struct dlm_lksb *lksb, void *astarg)
{
	struct claim_parked op = {
		.unlock = true, .lockspace = lockspace, .lkid = lkid,
		.flags = flags & ~DLM_LKF_FREED, .lksb = lksb, .astarg = astarg,
	};

	if (!lockspace)
		return -ENODEV;
	if (flags & DLM_LKF_CANCEL)
		return cancel(&op);
	return pass_or_park(&op, flags & DLM_LKF_FREED);
}

static int sleep_until_settled(struct dlm_ls *ls, bool signals)
{
	struct dlm_claims *cs = &ls->ls_claims;
	struct claim_parked op = { };

	if (!READ_ONCE(cs->unsettled))
		return 0;
	spin_lock_bh(&cs->lock);
	op.before = cs->made + 1;
	spin_unlock_bh(&cs->lock);
	return open_for(cs, &op) ? 0 : sleep_at_barrier(cs, &op, signals);
}

/*
 * For locks of user space, whose callers may as well sleep. A signal ends the
 * wait: nothing has been done by then, as the error says.
 */
int dlm_claim_wait(struct dlm_ls *ls)
{
	return sleep_until_settled(ls, true);
}

/* All locks of a process go, and nobody is there to be told of an error. */
void dlm_claim_wait_at_exit(struct dlm_ls *ls)
{
	sleep_until_settled(ls, false);
}

/* The lockspace is stopping: their locks go with it. */
void claim_drop_parked(struct dlm_claims *cs)
{
	struct claim_parked *p;

	while ((p = pop_parked(cs))) {
		dlm_put_lockspace(cs->ls);
		kfree(p);
	}
}

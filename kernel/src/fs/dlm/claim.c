// SPDX-License-Identifier: GPL-2.0-only
/*
 * Claimed mastership of DLM resources.
 *
 * Whoever creates an object makes itself the master of the object's locks,
 * grants them, and tells the directory node afterwards. Claims to the same
 * directory node travel in batches; the answer lists only what was refused.
 * Until a claim is settled its lock is granted provisionally. Nothing may let
 * another node learn of the object; the barrier prevents that.
 *
 *            batch answered, or a REQUEST from the directory node
 *   PENDING -----------------------------------------------------> settled
 *      |  refused, or a recovery began              granted
 *      +----------------------------> ASKING --------------------> settled
 *
 * A claim is an asynchronous LOOKUP. Whenever it does not simply succeed, it
 * becomes an ordinary request: the unchanged code takes the lock off the grant
 * queue and requests it in its mode. It asks the master that the directory
 * named. After a recovery it asks the node that a LOOKUP returns. Then it has
 * only two special properties. Its caller believes it granted, and is not told
 * a second time (dlm_claim_granted). Operations on it wait (must_wait).
 *
 * A claim belongs to the resource, and holds a reference to it. A resource with
 * a PENDING claim has one local lock at a time. Further ones wait where they
 * would for a LOOKUP. Locks: res_lock, then dlm_claims.lock.
 */
#include "claim_internal.h"
#include "claim_trace.h"

static void trace(struct dlm_claim *c, enum claim_event event, int nodeid)
{
	struct dlm_rsb *r = c->r;

	trace_dlm_claim(r->res_ls->ls_global_id, r->res_name, r->res_length,
			c->ordinal, event, nodeid);
}

/* Somebody waits for a claim that may still be gathered. */
static void hurry(struct dlm_claims *cs)
{
	spin_lock_bh(&cs->lock);
	claim_hurry(cs);
	spin_unlock_bh(&cs->lock);
}

static void count(struct dlm_claims *cs, enum dlm_claim_counter counter)
{
	spin_lock_bh(&cs->lock);
	cs->counters[counter]++;
	spin_unlock_bh(&cs->lock);
}

/* Another node wants a lock of a claimed resource. */
bool dlm_claimed(struct dlm_rsb *r)
{
	return r->res_claim;
}

/*
 * Making a claim.
 */

/* May a lock be granted before the directory node has answered? */
static bool may_claim(struct dlm_rsb *r, struct dlm_lkb *lkb)
{
	struct dlm_ls *ls = r->res_ls;
	struct dlm_claims *cs = &ls->ls_claims;

	if (READ_ONCE(cs->mode) == DLM_CLAIM_OFF || !READ_ONCE(cs->limit) ||
	    READ_ONCE(cs->stopping) || dlm_no_directory(ls) || dlm_locking_stopped(ls))
		return false;
#if LINUX_6_1
	if (lkb->lkb_flags & DLM_IFL_USER)
		return false;
#else
	if (test_bit(DLM_DFL_USER_BIT, &lkb->lkb_dflags))
		return false;
#endif
	/* no other lock of this node */
	return !r->res_first_lkid &&
	       list_empty(&r->res_lookup) && list_empty(&r->res_grantqueue) &&
	       list_empty(&r->res_convertqueue) &&
	       list_empty(&r->res_waitqueue);
}

/*
 * The object was freed, and its name is a new one's. What the claim says of
 * this node is as true of the new lock: no REMOVE has been sent, and the claim
 * still holds the barrier for whatever weakens a lock from here on.
 */
static bool covers(struct dlm_claim *c, struct dlm_lkb *lkb)
{
	return !c->strict && may_claim(c->r, lkb) &&
	       READ_ONCE(claims_of(c->r)->mode) == DLM_CLAIM_ON;
}

static struct dlm_claim *make_claim(struct dlm_rsb *r)
{
	struct dlm_claims *cs = claims_of(r);
	struct claim_dir *dir;
	struct dlm_claim *c;

#if LINUX_7_2
	c = kzalloc_obj(*c, GFP_ATOMIC);
#else
	c = kzalloc(sizeof(*c), GFP_ATOMIC);
#endif
	if (!c)
		return NULL;
	c->r = r;
	c->state = CLAIM_PENDING;
	INIT_LIST_HEAD(&c->open);

	spin_lock_bh(&cs->lock);
	dir = claim_get_dir(cs, dlm_dir_nodeid(r));
	if (!dir) {
		spin_unlock_bh(&cs->lock);
		kfree(c);
		return NULL;
	}
	dlm_hold_rsb(r);
	r->res_claim = c;
	c->ordinal = ++cs->made;
	c->strict = READ_ONCE(cs->mode) == DLM_CLAIM_STRICT;
	if (cs->unsettled >= DLM_CLAIM_CAP) {
		cs->counters[DLM_CLAIM_CAPPED]++;
		c->strict = true;
	}
	cs->counters[c->strict ? DLM_CLAIMS_STRICT : DLM_CLAIMS]++;
	if (!c->strict) {
		list_add_tail(&c->open, &cs->open);
		WRITE_ONCE(cs->unsettled, cs->unsettled + 1);
	}
	trace(c, CLAIM_IS_MADE, dir->nodeid);
	claim_gather(cs, dir, c);
	spin_unlock_bh(&cs->lock);
	return c;
}

/*
 * From set_master(). 0: this node is the master, 1: the lock waits,
 * negative: the stock code decides.
 */
int dlm_claim_set_master(struct dlm_rsb *r, struct dlm_lkb *lkb)
{
	bool asked = lkb->lkb_exflags & DLM_LKF_CLAIM;
	struct dlm_claim *c = r->res_claim;

	/* never sent, and no second chance after a stock attempt */
	lkb->lkb_exflags &= ~DLM_LKF_CLAIM;

	if (c && c->state == CLAIM_PENDING) {
		if (asked && covers(c, lkb)) {
			lkb->lkb_nodeid = 0;
			return 0;
		}
		hurry(claims_of(r));
		goto wait;
	}

	if (r->res_master_nodeid || rsb_flag(r, RSB_MASTER_UNCERTAIN) ||
	    (r->res_first_lkid && r->res_first_lkid != lkb->lkb_id) ||
	    dlm_dir_nodeid(r) == claim_our_nodeid())
		return -1;

	c = NULL;
#if LINUX_6_1
	if (asked && !r->res_claim && may_claim(r, lkb)) {
		dlm_claim_before_lookup(r);
		c = make_claim(r);
	}
#else
	if (asked && !r->res_claim && may_claim(r, lkb))
		c = make_claim(r);
#endif
	if (!c) {
		atomic64_inc(&claims_of(r)->lookups);
		return -1;
	}
	if (c->strict)
		goto wait;

	r->res_master_nodeid = claim_our_nodeid();
	r->res_nodeid = 0;
	lkb->lkb_nodeid = 0;
	return 0;
wait:
	list_add_tail(&lkb->lkb_rsb_lookup, &r->res_lookup);
	return 1;
}

/*
 * Settling a claim.
 */

/* The resource is locked, and the caller has a reference of its own. */
static void settle(struct dlm_claim *c, enum claim_event event,
		   enum dlm_claim_counter counter)
{
	struct dlm_claims *cs = claims_of(c->r);

	trace(c, event, c->r->res_master_nodeid);
	c->r->res_claim = NULL;
	spin_lock_bh(&cs->lock);
	cs->counters[counter]++;
	if (c->dir)
		c->dir->gathered_count--;
	list_del_init(&c->link);
	if (!c->strict) {
		list_del(&c->open);
		WRITE_ONCE(cs->unsettled, cs->unsettled - 1);
		if (!list_empty(&cs->parked))
			mod_delayed_work(claim_wq, &cs->parked_work, 0);
	}
	spin_unlock_bh(&cs->lock);
	wake_up(&cs->wait);
	dlm_put_rsb(c->r);
	kfree(c);
}

static void set_rsb_master(struct dlm_rsb *r, int nodeid)
{
	if (nodeid <= 0) {
		r->res_master_nodeid = 0;
		r->res_nodeid = -1;
	} else {
		r->res_master_nodeid = nodeid;
		r->res_nodeid = nodeid == claim_our_nodeid() ? 0 : nodeid;
	}
}

static struct dlm_lkb *first_parked(struct dlm_rsb *r)
{
	struct dlm_lkb *lkb;

	lkb = list_first_entry_or_null(&r->res_lookup, struct dlm_lkb,
				       lkb_rsb_lookup);
	if (lkb)
		list_del_init(&lkb->lkb_rsb_lookup);
	return lkb;
}

/* Local requests that waited for the claim go the stock way. */
static void unpark_locks(struct dlm_rsb *r)
{
	struct dlm_lkb *lkb;

	if (r->res_master_nodeid) {
		dlm_claim_unpark(r);
		return;
	}
	/* the others wait for this one's LOOKUP */
	lkb = first_parked(r);
	if (lkb)
		dlm_claim_request(r, lkb);
}

static void confirm(struct dlm_claim *c)
{
	struct dlm_rsb *r = c->r;

	set_rsb_master(r, claim_our_nodeid());
	settle(c, CLAIM_IS_CONFIRMED, DLM_CLAIM_CONFIRMED);
	unpark_locks(r);
}

/*
 * The request goes first and out of order, since its holder holds already. It
 * must neither fail nor come back in another mode.
 */
static void start_asking(struct dlm_claim *c, struct dlm_lkb *lkb)
{
	c->state = CLAIM_ASKING;
	c->lkb = lkb;
	c->mode = lkb->lkb_grmode;
	dlm_claim_ungrant(c->r, lkb);
	lkb->lkb_exflags = (lkb->lkb_exflags & DLM_LKF_VALBLK) |
			   DLM_LKF_HEADQUE | DLM_LKF_NOORDER;
}

static void ask(struct dlm_claim *c)
{
	struct dlm_claims *cs = claims_of(c->r);
	struct dlm_lkb *lkb = c->lkb;
	struct dlm_rsb *r = c->r;

	c->state = CLAIM_ASKING;
	dlm_claim_request(r, lkb);

	/* it is settled and gone if the request was granted here */
	if (r->res_claim == c && !lkb->lkb_wait_type && !lkb->lkb_status &&
	    list_empty(&lkb->lkb_rsb_lookup)) {
		if (r->res_first_lkid == lkb->lkb_id)
			r->res_first_lkid = 0;
		c->state = CLAIM_UNASKED;
		spin_lock_bh(&cs->lock);
		cs->counters[DLM_CLAIM_RETRIES]++;
		list_move_tail(&c->link, &cs->retry);
		claim_start_timer(cs);
		spin_unlock_bh(&cs->lock);
		return;
	}
	if (r->res_master_nodeid)
		dlm_claim_unpark(r);
}

/* The directory knows another master, or (-1) could not say. */
static void refuse(struct dlm_claim *c, int nodeid)
{
	struct dlm_rsb *r = c->r;
	struct dlm_lkb *lkb;

	trace(c, CLAIM_IS_REFUSED, nodeid);
	set_rsb_master(r, nodeid);
	lkb = list_first_entry_or_null(&r->res_grantqueue, struct dlm_lkb,
				       lkb_statequeue);
	if (!lkb) {
		settle(c, CLAIM_IS_DROPPED, DLM_CLAIM_REFUSALS);
		unpark_locks(r);
		return;
	}
	count(claims_of(r), DLM_CLAIM_REFUSALS);
	start_asking(c, lkb);
	ask(c);
}

/*
 * From queue_cast(): whether the completion is that of a lock that its caller
 * holds already.
 */
bool dlm_claim_granted(struct dlm_rsb *r, struct dlm_lkb *lkb, int rv)
{
	struct dlm_claim *c = r->res_claim;

	if (!c || c->lkb != lkb)
		return false;
	if (rv)
		settle(c, CLAIM_IS_DROPPED, DLM_CLAIM_DROPPED);
	else
		settle(c, CLAIM_IS_MERGED, DLM_CLAIM_MERGES);
	return !rv;
}

/*
 * From receive_request() by way of validate_master_nodeid(). 0: this node is
 * the master, negative: it is not, 1: the stock code decides.
 *
 * The directory node asks here because it has this node on record, which
 * confirms the claim. From anybody else a REQUEST proves nothing: a stale
 * cached master leads here, too. Whoever sent it looks up again.
 */
int dlm_claim_validate_master(struct dlm_rsb *r, int from_nodeid)
{
	struct dlm_claim *c = r->res_claim;

	if (!c || c->state != CLAIM_PENDING)
		return r->res_master_nodeid == claim_our_nodeid() ? 0 : 1;
	if (from_nodeid != dlm_dir_nodeid(r)) {
		hurry(claims_of(r));
		return -ENOTBLK;
	}
	confirm(c);
	return 0;
}

/*
 * Takes the first claim off a list, and returns its resource, locked and held;
 * NULL when the list is empty. Other CPUs take settled claims from the list.
 * res_claim may be another or none by then.
 */
struct dlm_rsb *claim_pop(struct dlm_claims *cs, struct list_head *list,
			  u64 *ordinal, unsigned int *index)
{
	struct dlm_claim *c;
	struct dlm_rsb *r;

	spin_lock_bh(&cs->lock);
	c = list_first_entry_or_null(list, struct dlm_claim, link);
	if (!c) {
		spin_unlock_bh(&cs->lock);
		return NULL;
	}
	list_del_init(&c->link);
	c->dir = NULL;
	*ordinal = c->ordinal;
	*index = c->index;
	r = c->r;
	dlm_hold_rsb(r);
	spin_unlock_bh(&cs->lock);
	lock_rsb(r);
	return r;
}

void claim_release(struct dlm_rsb *r)
{
	unlock_rsb(r);
	dlm_put_rsb(r);
}

/* The directory node has answered: 0 (nobody else), a master, or -1. */
void claim_answered(struct dlm_rsb *r, u64 ordinal, int master)
{
	struct dlm_claim *c = r->res_claim;

	if (!c || c->ordinal != ordinal || c->state != CLAIM_PENDING)
		return;
	if (!master)
		confirm(c);
	else
		refuse(c, master);
}

/* A recovery begins: from now on the claim is a LOOKUP like any other. */
void claim_to_lookup(struct dlm_rsb *r, u64 ordinal)
{
	struct dlm_claim *c = r->res_claim;
	struct dlm_lkb *lkb;

	if (!c || c->ordinal != ordinal)
		return;
	set_rsb_master(r, 0);
	lkb = list_first_entry_or_null(&r->res_grantqueue, struct dlm_lkb,
				       lkb_statequeue);
	if (lkb) {
		count(claims_of(r), DLM_CLAIM_RECOVERED);
		trace(c, CLAIM_IS_RECOVERED, 0);
		start_asking(c, lkb);
	} else {
		settle(c, CLAIM_IS_DROPPED, DLM_CLAIM_DROPPED);
		lkb = first_parked(r);
		if (!lkb)
			return;
	}
	r->res_first_lkid = lkb->lkb_id;
	dlm_claim_await_lookup(lkb, dlm_dir_nodeid(r));
}

void claim_retry_requests(struct dlm_claims *cs)
{
	struct dlm_claim *c;
	unsigned int index;
	struct dlm_rsb *r;
	LIST_HEAD(again);
	u64 ordinal;

	/* after a recovery, another master may have to be asked */
	if (READ_ONCE(cs->stopping))
		return;
	if (!dlm_lock_recovery_try(cs->ls)) {
		spin_lock_bh(&cs->lock);
		claim_start_timer(cs);
		spin_unlock_bh(&cs->lock);
		return;
	}
	spin_lock_bh(&cs->lock);
	list_splice_init(&cs->retry, &again);
	spin_unlock_bh(&cs->lock);
	while ((r = claim_pop(cs, &again, &ordinal, &index))) {
		c = r->res_claim;
		if (c && c->ordinal == ordinal && c->state == CLAIM_UNASKED)
			ask(c);
		claim_release(r);
	}
	dlm_unlock_recovery(cs->ls);
}

// SPDX-License-Identifier: GPL-2.0-only
/*
 * Claimed mastership of DLM resources.
 *
 * Whoever creates an object makes itself the master of the object's locks,
 * grants them, and tells the directory node afterwards. Claims to the same
 * directory node travel in batches; the answer lists only what was refused.
 * Until a claim is settled its lock is granted provisionally, and nothing may
 * let another node learn of the object: that is the barrier's business.
 *
 *            batch answered, or a REQUEST from the directory node
 *   PENDING -----------------------------------------------------> settled
 *      |  refused, or a recovery began              granted
 *      +----------------------------> ASKING --------------------> settled
 *
 * A claim is an asynchronous LOOKUP. Whenever it does not simply succeed, it
 * becomes an ordinary one: the lock is taken off the grant queue and requested
 * in the mode it has, by the unchanged code, at the master that the directory
 * named or, after a recovery, wherever a LOOKUP leads. All that is special
 * about it then is that its caller, who believes it granted, is not told a
 * second time (dlm_claim_granted), and that operations on it wait (must_wait).
 *
 * A claim belongs to the resource, and holds a reference to it. There is one
 * local lock on a resource with a PENDING claim; further ones wait where they
 * would for a LOOKUP. Locks: res_lock, then dlm_claims.lock.
 */
#include "dlm_internal.h"
#include "dir.h"
#include "lock.h"
#include "lockspace.h"
#include "member.h"
#include "claim_compat.h"

#include <linux/debugfs.h>
#include <linux/moduleparam.h>
#include <linux/seq_file.h>
#include <linux/sysfs.h>

#define CREATE_TRACE_POINTS
#include "claim_trace.h"

enum claim_state {
	CLAIM_PENDING,		/* we are the master unless the directory objects */
	CLAIM_ASKING,		/* an ordinary request is under way */
	CLAIM_UNASKED,		/* as before, but it could not be sent */
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
	u32			valid_from;	/* older answers are of an older view */
};

struct claim_refusal {
	__le32			index;
	__le32			nodeid;		/* the master, or -1: look up again */
};

struct claim_reply {
	struct list_head	list;
	int			nodeid;
	__le32			seq;
	unsigned int		count;
	struct claim_refusal	refused[DLM_CLAIM_BATCH];
};

/* An operation that waits until claims are settled. */
struct claim_parked {
	struct list_head	list;
	u64			before;		/* all claims with smaller ordinals */
	u64			own;		/* the claim of its own resource */
	ktime_t			since;
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

static const char * const mode_names[] = { "off", "strict", "on" };

static const char * const counter_names[DLM_CLAIM_COUNTERS] = {
	"claims", "claims_strict", "batches", "confirmed", "refusals",
	"merges", "recovered", "dropped", "capped", "retries", "lookups",
	"answered", "refused", "barrier_waits", "barrier_wait_us",
	"barrier_wait_max_us",
};

static struct workqueue_struct *claim_wq;

static unsigned int claim_batch_us = DLM_CLAIM_BATCH_US;
module_param(claim_batch_us, uint, 0644);
MODULE_PARM_DESC(claim_batch_us, "Age at which a batch of claims is sent, in microseconds");

static struct dlm_claims *claims_of(struct dlm_rsb *r)
{
	return &r->res_ls->ls_claims;
}

static void trace(struct dlm_claim *c, const char *how, int nodeid)
{
	struct dlm_rsb *r = c->r;

	trace_dlm_claim(r->res_ls->ls_global_id, r->res_name, r->res_length,
			c->ordinal, how, nodeid);
}

static void count(struct dlm_claims *cs, enum dlm_claim_counter counter)
{
	spin_lock_bh(&cs->lock);
	cs->counters[counter]++;
	spin_unlock_bh(&cs->lock);
}

/*
 * Messages. Those of claims have m_lkid = the batch's number, m_result = the
 * number of entries, and in m_extra names (a length byte before each) or
 * struct claim_refusal.
 */

static struct dlm_mhandle *new_message(struct dlm_ls *ls, int nodeid, int type,
				       int len, __le32 seq, unsigned int entries,
				       struct dlm_message **ms_ret)
{
	struct dlm_message *ms;
	struct dlm_mhandle *mh;
	char *buf;

	mh = claim_mhandle(nodeid, sizeof(*ms) + len, &buf);
	if (!mh)
		return NULL;
	ms = (struct dlm_message *)buf;
	ms->m_header.h_version = cpu_to_le32(DLM_HEADER_MAJOR |
					     DLM_HEADER_MINOR);
	ms->m_header.u.h_lockspace = cpu_to_le32(ls->ls_global_id);
	ms->m_header.h_nodeid = cpu_to_le32(dlm_our_nodeid());
	ms->m_header.h_length = cpu_to_le16(sizeof(*ms) + len);
	ms->m_header.h_cmd = DLM_MSG;
	ms->m_type = cpu_to_le32(type);
	ms->m_lkid = seq;
	ms->m_result = cpu_to_le32(entries);
	*ms_ret = ms;
	return mh;
}

static unsigned int payload(const struct dlm_message *ms)
{
	return le16_to_cpu(ms->m_header.h_length) - sizeof(*ms);
}

static void start_timer(struct dlm_claims *cs)
{
	if (!cs->stopping && !hrtimer_is_queued(&cs->timer))
		hrtimer_start(&cs->timer, ns_to_ktime((u64)claim_batch_us * NSEC_PER_USEC),
			      HRTIMER_MODE_REL_SOFT);
}

static bool send_batch(struct dlm_claims *cs, struct claim_dir *dir)
{
	unsigned int entries = 0, len = 0;
	struct dlm_claim *c, *next;
	struct dlm_message *ms;
	struct dlm_mhandle *mh;
	char *p;

	list_for_each_entry(c, &dir->gathered, link) {
		if (entries == DLM_CLAIM_BATCH ||
		    len + 1 + c->r->res_length > DLM_CLAIM_BATCH_BYTES)
			break;
		len += 1 + c->r->res_length;
		entries++;
	}

	mh = new_message(cs->ls, dir->nodeid, DLM_MSG_CLAIM, len,
			 cpu_to_le32(dir->seq + 1), entries, &ms);
	if (!mh) {
		/* they stay gathered */
		cs->counters[DLM_CLAIM_RETRIES]++;
		return false;
	}
	dir->seq++;
	dir->outstanding++;
	dir->gathered_count -= entries;
	dir->gathered_since = ktime_get();
	cs->counters[DLM_CLAIM_BATCHES]++;
	trace_dlm_claim_batch(cs->ls->ls_global_id, dir->nodeid, dir->seq,
			      entries, "sent");

	p = ms->m_extra;
	len = 0;
	list_for_each_entry_safe(c, next, &dir->gathered, link) {
		if (len == entries)
			break;
		c->dir = NULL;
		c->seq = dir->seq;
		c->index = len++;
		*p++ = c->r->res_length;
		memcpy(p, c->r->res_name, c->r->res_length);
		p += c->r->res_length;
		list_move_tail(&c->link, &dir->sent);
	}
	dlm_midcomms_commit_mhandle(mh, NULL, 0);
	return true;
}

/* One batch is out to a node; the next gathers meanwhile, unless it hurries. */
static bool batch_due(struct claim_dir *dir)
{
	if (!dir->gathered_count)
		return false;
	if (dir->hurry)
		return true;
	if (dir->outstanding)
		return false;
	return dir->gathered_count >= DLM_CLAIM_BATCH ||
	       ktime_us_delta(ktime_get(), dir->gathered_since) >= claim_batch_us;
}

static void send_batches(struct dlm_claims *cs)
{
	struct claim_dir *dir;

	/* a recovery takes what is gathered */
	if (dlm_locking_stopped(cs->ls))
		return;

	list_for_each_entry(dir, &cs->dirs, list) {
		while (batch_due(dir)) {
			if (!send_batch(cs, dir)) {
				start_timer(cs);
				break;
			}
		}
		if (!dir->gathered_count)
			dir->hurry = false;
		else if (!dir->outstanding)
			start_timer(cs);
	}
}

static void hurry(struct dlm_claims *cs)
{
	struct claim_dir *dir;

	list_for_each_entry(dir, &cs->dirs, list)
		dir->hurry = true;
	send_batches(cs);
}

static struct claim_dir *find_dir(struct dlm_claims *cs, int nodeid)
{
	struct claim_dir *dir;

	list_for_each_entry(dir, &cs->dirs, list) {
		if (dir->nodeid == nodeid)
			return dir;
	}
	return NULL;
}

static struct claim_dir *get_dir(struct dlm_claims *cs, int nodeid)
{
	struct claim_dir *dir = find_dir(cs, nodeid);

	if (dir)
		return dir;
	dir = kzalloc(sizeof(*dir), GFP_ATOMIC);
	if (!dir)
		return NULL;
	dir->nodeid = nodeid;
	INIT_LIST_HEAD(&dir->gathered);
	INIT_LIST_HEAD(&dir->sent);
	list_add_tail(&dir->list, &cs->dirs);
	return dir;
}

static void gather(struct dlm_claims *cs, struct claim_dir *dir,
		   struct dlm_claim *c)
{
	c->dir = dir;
	list_add_tail(&c->link, &dir->gathered);
	if (!dir->gathered_count++)
		dir->gathered_since = ktime_get();
	if (c->strict)
		dir->hurry = true;
	if (c->strict || dir->gathered_count >= DLM_CLAIM_BATCH)
		send_batches(cs);
	else if (!dir->outstanding)
		start_timer(cs);
}

/*
 * Making a claim.
 */

static bool may_claim(struct dlm_rsb *r, struct dlm_lkb *lkb)
{
	struct dlm_ls *ls = r->res_ls;
	struct dlm_claims *cs = &ls->ls_claims;

	if (cs->mode == DLM_CLAIM_OFF || !cs->agreed || cs->stopping ||
	    dlm_no_directory(ls) || dlm_locking_stopped(ls) ||
	    claim_user_lock(lkb))
		return false;
	/* a resource that this node knows nothing of */
	return !r->res_claim && !r->res_first_lkid &&
	       list_empty(&r->res_lookup) && list_empty(&r->res_grantqueue) &&
	       list_empty(&r->res_convertqueue) &&
	       list_empty(&r->res_waitqueue);
}

static struct dlm_claim *make_claim(struct dlm_rsb *r)
{
	struct dlm_claims *cs = claims_of(r);
	struct claim_dir *dir;
	struct dlm_claim *c;

	c = kzalloc(sizeof(*c), GFP_ATOMIC);
	if (!c)
		return NULL;
	c->r = r;
	c->state = CLAIM_PENDING;
	INIT_LIST_HEAD(&c->open);

	spin_lock_bh(&cs->lock);
	dir = get_dir(cs, dlm_dir_nodeid(r));
	if (!dir) {
		spin_unlock_bh(&cs->lock);
		kfree(c);
		return NULL;
	}
	dlm_hold_rsb(r);
	r->res_claim = c;
	c->ordinal = ++cs->made;
	c->strict = cs->mode == DLM_CLAIM_STRICT;
	if (cs->unsettled >= DLM_CLAIM_CAP) {
		cs->counters[DLM_CLAIM_CAPPED]++;
		c->strict = true;
	}
	cs->counters[c->strict ? DLM_CLAIMS_STRICT : DLM_CLAIMS]++;
	if (!c->strict) {
		list_add_tail(&c->open, &cs->open);
		WRITE_ONCE(cs->unsettled, cs->unsettled + 1);
	}
	trace(c, "claim", dir->nodeid);
	gather(cs, dir, c);
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

	if (c && c->state == CLAIM_PENDING)
		goto wait;

	if (r->res_master_nodeid || rsb_flag(r, RSB_MASTER_UNCERTAIN) ||
	    (r->res_first_lkid && r->res_first_lkid != lkb->lkb_id) ||
	    dlm_dir_nodeid(r) == dlm_our_nodeid())
		return -1;

	c = NULL;
	if (asked && may_claim(r, lkb)) {
		dlm_claim_before_lookup(r);
		c = make_claim(r);
	}
	if (!c) {
		count(claims_of(r), DLM_CLAIM_LOOKUPS);
		return -1;
	}
	if (c->strict)
		goto wait;

	r->res_master_nodeid = dlm_our_nodeid();
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

static bool passes(struct dlm_claims *cs, struct claim_parked *p)
{
	struct dlm_claim *c;

	if (cs->stopping || list_empty(&cs->open))
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

/* The resource is locked, and the caller has a reference of its own. */
static void settle(struct dlm_claim *c, const char *how,
		   enum dlm_claim_counter counter)
{
	struct dlm_claims *cs = claims_of(c->r);

	trace(c, how, c->r->res_master_nodeid);
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
			queue_work(claim_wq, &cs->parked_work);
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
		r->res_nodeid = nodeid == dlm_our_nodeid() ? 0 : nodeid;
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

	set_rsb_master(r, dlm_our_nodeid());
	settle(c, "confirmed", DLM_CLAIM_CONFIRMED);
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
		start_timer(cs);
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

	trace(c, "refused", nodeid);
	set_rsb_master(r, nodeid);
	lkb = list_first_entry_or_null(&r->res_grantqueue, struct dlm_lkb,
				       lkb_statequeue);
	if (!lkb) {
		settle(c, "dropped", DLM_CLAIM_REFUSALS);
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
		settle(c, "dropped", DLM_CLAIM_DROPPED);
	else
		settle(c, "merged", DLM_CLAIM_MERGES);
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
		return r->res_master_nodeid == dlm_our_nodeid() ? 0 : 1;
	if (from_nodeid != dlm_dir_nodeid(r))
		return -ENOTBLK;
	confirm(c);
	return 0;
}

/*
 * The directory node's side: the stock directory already records who asks
 * first, and names the master to whoever asks later.
 */

static bool send_reply(struct dlm_ls *ls, struct claim_reply *reply)
{
	int len = reply->count * sizeof(struct claim_refusal);
	struct dlm_message *ms;
	struct dlm_mhandle *mh;

	mh = new_message(ls, reply->nodeid, DLM_MSG_CLAIM_REPLY, len,
			 reply->seq, reply->count, &ms);
	if (!mh)
		return false;
	memcpy(ms->m_extra, reply->refused, len);
	dlm_midcomms_commit_mhandle(mh, NULL, 0);
	return true;
}

static void receive_claims(struct dlm_ls *ls, const struct dlm_message *ms)
{
	unsigned int i, entries = le32_to_cpu(ms->m_result);
	int master, from = le32_to_cpu(ms->m_header.h_nodeid);
	const u8 *p = ms->m_extra, *end = p + payload(ms);
	struct dlm_claims *cs = &ls->ls_claims;
	struct claim_reply *reply;

	reply = kzalloc(sizeof(*reply), GFP_ATOMIC);
	if (!reply) {
		log_error(ls, "no memory to answer claims of node %d", from);
		return;
	}
	reply->nodeid = from;
	reply->seq = ms->m_lkid;

	for (i = 0; i < entries && i < DLM_CLAIM_BATCH; i++) {
		if (p >= end || !*p || *p > DLM_RESNAME_MAXLEN ||
		    p + 1 + *p > end) {
			log_error(ls, "malformed claims from node %d", from);
			break;
		}
		if (dlm_master_lookup(ls, from, (char *)p + 1, *p, 0, &master,
				      NULL))
			master = -1;
		if (master != from) {
			reply->refused[reply->count].index = cpu_to_le32(i);
			reply->refused[reply->count++].nodeid =
				cpu_to_le32(master);
		}
		p += 1 + *p;
	}
	trace_dlm_claim_batch(ls->ls_global_id, from, le32_to_cpu(ms->m_lkid),
			      i, "answered");

	spin_lock_bh(&cs->lock);
	cs->counters[DLM_CLAIM_ANSWERED] += i;
	cs->counters[DLM_CLAIM_REFUSED] += reply->count;
	if (send_reply(ls, reply)) {
		kfree(reply);
	} else {
		cs->counters[DLM_CLAIM_RETRIES]++;
		list_add_tail(&reply->list, &cs->replies);
		start_timer(cs);
	}
	spin_unlock_bh(&cs->lock);
}

/*
 * Takes the first claim off a list that other CPUs take settled claims from,
 * and returns its resource, locked and held; NULL when the list is empty.
 * res_claim may be another or none by then.
 */
static struct dlm_rsb *pop_claim(struct dlm_claims *cs, struct list_head *list,
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

static void release(struct dlm_rsb *r)
{
	unlock_rsb(r);
	dlm_put_rsb(r);
}

static void receive_claim_reply(struct dlm_ls *ls, const struct dlm_message *ms)
{
	const struct claim_refusal *refused = (const void *)ms->m_extra;
	unsigned int i, index, count = le32_to_cpu(ms->m_result);
	u32 seq = le32_to_cpu(ms->m_lkid);
	int from = le32_to_cpu(ms->m_header.h_nodeid);
	struct dlm_claims *cs = &ls->ls_claims;
	int masters[DLM_CLAIM_BATCH] = { 0 };
	struct dlm_claim *c, *next;
	struct claim_dir *dir;
	LIST_HEAD(answered);
	struct dlm_rsb *r;
	u64 ordinal;

	if (count > DLM_CLAIM_BATCH || payload(ms) < count * sizeof(*refused)) {
		log_error(ls, "malformed answer to claims from node %d", from);
		return;
	}
	for (i = 0; i < count; i++) {
		index = le32_to_cpu(refused[i].index);
		if (index < DLM_CLAIM_BATCH)
			masters[index] = le32_to_cpu(refused[i].nodeid);
	}

	spin_lock_bh(&cs->lock);
	dir = find_dir(cs, from);
	if (!dir || (s32)(seq - dir->valid_from) < 0 || !dir->outstanding) {
		spin_unlock_bh(&cs->lock);
		log_limit(ls, "unexpected answer %u to claims from node %d",
			  seq, from);
		return;
	}
	dir->outstanding--;
	list_for_each_entry_safe(c, next, &dir->sent, link) {
		if (c->seq == seq)
			list_move_tail(&c->link, &answered);
	}
	send_batches(cs);
	spin_unlock_bh(&cs->lock);

	while ((r = pop_claim(cs, &answered, &ordinal, &index))) {
		c = r->res_claim;
		if (c && c->ordinal == ordinal && c->state == CLAIM_PENDING) {
			if (!masters[index])
				confirm(c);
			else
				refuse(c, masters[index]);
		}
		release(r);
	}
}

bool dlm_claim_is_message(__le32 type)
{
	return type == cpu_to_le32(DLM_MSG_CLAIM) ||
	       type == cpu_to_le32(DLM_MSG_CLAIM_REPLY);
}

bool dlm_claim_receive(struct dlm_ls *ls, const struct dlm_message *ms)
{
	switch (le32_to_cpu(ms->m_type)) {
	case DLM_MSG_CLAIM:
		receive_claims(ls, ms);
		return true;
	case DLM_MSG_CLAIM_REPLY:
		receive_claim_reply(ls, ms);
		return true;
	default:
		return false;
	}
}

/*
 * What could not be sent is sent later.
 */

static void retry_replies(struct dlm_claims *cs)
{
	struct claim_reply *reply, *next;

	list_for_each_entry_safe(reply, next, &cs->replies, list) {
		if (!dlm_locking_stopped(cs->ls) && !send_reply(cs->ls, reply))
			return;
		/* in a recovery its claimer asks again */
		list_del(&reply->list);
		kfree(reply);
	}
}

static void retry_requests(struct dlm_claims *cs)
{
	struct dlm_claim *c;
	unsigned int index;
	struct dlm_rsb *r;
	LIST_HEAD(again);
	u64 ordinal;

	/* after a recovery, another master may have to be asked */
	if (cs->stopping)
		return;
	if (!dlm_lock_recovery_try(cs->ls)) {
		spin_lock_bh(&cs->lock);
		start_timer(cs);
		spin_unlock_bh(&cs->lock);
		return;
	}
	spin_lock_bh(&cs->lock);
	list_splice_init(&cs->retry, &again);
	spin_unlock_bh(&cs->lock);
	while ((r = pop_claim(cs, &again, &ordinal, &index))) {
		c = r->res_claim;
		if (c && c->ordinal == ordinal && c->state == CLAIM_UNASKED)
			ask(c);
		release(r);
	}
	dlm_unlock_recovery(cs->ls);
}

static void send_work(struct work_struct *work)
{
	struct dlm_claims *cs = container_of(work, struct dlm_claims, send_work);
	bool retry;

	spin_lock_bh(&cs->lock);
	send_batches(cs);
	retry_replies(cs);
	if (!list_empty(&cs->replies))
		start_timer(cs);
	retry = !list_empty(&cs->retry);
	spin_unlock_bh(&cs->lock);
	if (retry)
		retry_requests(cs);
}

static enum hrtimer_restart timer_fires(struct hrtimer *timer)
{
	struct dlm_claims *cs = container_of(timer, struct dlm_claims, timer);

	queue_work(claim_wq, &cs->send_work);
	return HRTIMER_NORESTART;
}

/*
 * The barrier. Weakening an EX or PW lock may let others learn of an object
 * under creation, so it waits until all claims made before are settled. It
 * waits outside the recovery gate: a recovery must be able to run and settle
 * them. The caller, a file system's lock thread, does not wait with it: the
 * operation is put aside and started later; its completion is asynchronous
 * anyway.
 */

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
 * What the operation has to wait for, in before and own. True also if there
 * is none but the lock's claim is PENDING, and may not be when the operation
 * gets there (claimed).
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

static void sleep_at_barrier(struct dlm_claims *cs, struct claim_parked *op)
{
	ktime_t since = ktime_get();

	spin_lock_bh(&cs->lock);
	cs->counters[DLM_CLAIM_BARRIER_WAITS]++;
	hurry(cs);
	spin_unlock_bh(&cs->lock);
	wait_event(cs->wait, open_for(cs, op));
	spin_lock_bh(&cs->lock);
	waited(cs, op->lkid, since);
	spin_unlock_bh(&cs->lock);
}

/* Whether the operation was put aside; if not, it may go on. */
static bool park(struct dlm_claims *cs, struct claim_parked *op)
{
	struct claim_parked *p;

	p = kmemdup(op, sizeof(*op), GFP_NOFS);
	if (!p) {
		sleep_at_barrier(cs, op);
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
	hurry(cs);
	spin_unlock_bh(&cs->lock);
	return true;
}

static int pass_or_park(struct claim_parked *op, bool freed)
{
	struct dlm_ls *ls = dlm_find_lockspace_local(op->lockspace);
	int error, tries = 0;
	bool claimed;

	if (freed)
		trace_dlm_claim_freed(ls->ls_global_id, op->lkid);
	do {
		error = 0;
		if (must_wait(ls, op, freed, &claimed) &&
		    park(&ls->ls_claims, op))
			break;
		error = start_operation(op);
		/* refused meanwhile, so that the lock is not granted now */
	} while (error == -EBUSY && claimed && ++tries < 3);

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

static void parked_work(struct work_struct *work)
{
	struct dlm_claims *cs = container_of(work, struct dlm_claims,
					     parked_work);
	struct claim_parked *p;
	int error, tries;

	while ((p = pop_parked(cs))) {
		/* busy for a moment, as it would have been for its caller */
		for (tries = 0; tries < 100; tries++) {
			error = start_operation(p);
			if (error != -EBUSY)
				break;
			msleep(20);
		}
		if (error)
			log_error(cs->ls, "operation of lock %x failed after waiting for claims: %d",
				  p->lkid, error);
		dlm_put_lockspace(cs->ls);
		kfree(p);
	}
}

int dlm_lock(dlm_lockspace_t *lockspace, int mode, struct dlm_lksb *lksb,
	     uint32_t flags, const void *name, unsigned int namelen,
	     uint32_t parent_lkid, void (*ast)(void *astarg), void *astarg,
	     void (*bast)(void *astarg, int mode))
{
	struct claim_parked op = {
		.lockspace = lockspace, .mode = mode, .lksb = lksb,
		.flags = flags & ~(DLM_LKF_FREED | DLM_LKF_CLAIM),
		.ast = ast, .astarg = astarg, .bast = bast,
	};

	if (!(flags & DLM_LKF_CONVERT) || !lksb)
		return dlm_stock_lock(lockspace, mode, lksb,
				      flags & ~DLM_LKF_FREED, name, namelen,
				      parent_lkid, ast, astarg, bast);
	op.lkid = lksb->sb_lkid;
	return pass_or_park(&op, flags & DLM_LKF_FREED);
}

int dlm_unlock(dlm_lockspace_t *lockspace, uint32_t lkid, uint32_t flags,
	       struct dlm_lksb *lksb, void *astarg)
{
	struct claim_parked op = {
		.unlock = true, .lockspace = lockspace, .lkid = lkid,
		.flags = flags & ~DLM_LKF_FREED, .lksb = lksb, .astarg = astarg,
	};
	bool claimed;

	if (flags & DLM_LKF_CANCEL) {
		/* the caller holds the lock: there is nothing to cancel */
		must_wait(lockspace, &op, true, &claimed);
		if (op.own)
			return 0;
		return start_operation(&op);
	}
	return pass_or_park(&op, flags & DLM_LKF_FREED);
}

/* For locks of user space, whose callers may as well sleep. */
void dlm_claim_wait(struct dlm_ls *ls)
{
	struct dlm_claims *cs = &ls->ls_claims;
	struct claim_parked op = { };

	if (!READ_ONCE(cs->unsettled))
		return;
	spin_lock_bh(&cs->lock);
	op.before = cs->made + 1;
	spin_unlock_bh(&cs->lock);
	if (!open_for(cs, &op))
		sleep_at_barrier(cs, &op);
}

/*
 * Recovery. At its beginning, while nobody is inside the gate and no message
 * is handled, every PENDING claim becomes a lock that waits for the answer to
 * a LOOKUP, with an unknown master. So it is not among the masters that this
 * node tells others, yields to whoever tells this node that it is the master,
 * and is looked up again when the directory is there. Those that are ASKING
 * are ordinary requests, which a recovery knows how to handle.
 */

static void recover_claim(struct dlm_rsb *r, struct dlm_claim *c)
{
	struct dlm_lkb *lkb;

	set_rsb_master(r, 0);
	lkb = list_first_entry_or_null(&r->res_grantqueue, struct dlm_lkb,
				       lkb_statequeue);
	if (lkb) {
		count(claims_of(r), DLM_CLAIM_RECOVERED);
		trace(c, "recovery", 0);
		start_asking(c, lkb);
	} else {
		settle(c, "dropped", DLM_CLAIM_DROPPED);
		lkb = first_parked(r);
		if (!lkb)
			return;
	}
	r->res_first_lkid = lkb->lkb_id;
	dlm_claim_await_lookup(lkb, dlm_dir_nodeid(r));
}

void dlm_claim_recover(struct dlm_ls *ls)
{
	struct dlm_claims *cs = &ls->ls_claims;
	struct claim_reply *reply, *next;
	struct claim_dir *dir;
	unsigned int index;
	struct dlm_rsb *r;
	LIST_HEAD(again);
	u64 ordinal;

	spin_lock_bh(&cs->lock);
	cs->agreed = false;
	cs->all_capable = false;
	cs->told = false;
	list_for_each_entry(dir, &cs->dirs, list) {
		list_splice_tail_init(&dir->sent, &again);
		list_splice_tail_init(&dir->gathered, &again);
		dir->gathered_count = 0;
		dir->outstanding = 0;
		dir->hurry = false;
		dir->valid_from = dir->seq + 1;
	}
	list_for_each_entry_safe(reply, next, &cs->replies, list) {
		list_del(&reply->list);
		kfree(reply);
	}
	spin_unlock_bh(&cs->lock);

	while ((r = pop_claim(cs, &again, &ordinal, &index))) {
		if (r->res_claim && r->res_claim->ordinal == ordinal)
			recover_claim(r, r->res_claim);
		release(r);
	}
}

/*
 * Agreement. Every node says in its status that it is capable. The lowest
 * polls all, and says before it lets the others go on whether all are; they
 * all ask it. With a member that is not, there are no claims.
 */

void dlm_claim_tell(struct dlm_ls *ls, struct rcom_config *rf)
{
	u32 bits = DLM_CLAIM_CAPABLE;

	if (READ_ONCE(ls->ls_claims.all_capable))
		bits |= DLM_CLAIM_AGREED;
	rf->rf_unused1 = cpu_to_le32(bits);
}

void dlm_claim_told(struct dlm_ls *ls, const struct rcom_config *rf, int nodeid)
{
	u32 bits = le32_to_cpu(rf->rf_unused1);
	struct dlm_member *memb;

	list_for_each_entry(memb, &ls->ls_nodes, list) {
		if (memb->nodeid == nodeid)
			memb->claim_capable = bits & DLM_CLAIM_CAPABLE;
	}
	if (nodeid == ls->ls_low_nodeid)
		ls->ls_claims.told = bits & DLM_CLAIM_AGREED;
}

void dlm_claim_members_polled(struct dlm_ls *ls)
{
	struct dlm_member *memb;
	bool all = true;

	list_for_each_entry(memb, &ls->ls_nodes, list) {
		if (memb->nodeid != dlm_our_nodeid() && !memb->claim_capable)
			all = false;
	}
	WRITE_ONCE(ls->ls_claims.all_capable, all);
}

void dlm_claim_recovered(struct dlm_ls *ls)
{
	struct dlm_claims *cs = &ls->ls_claims;

	cs->agreed = ls->ls_low_nodeid == dlm_our_nodeid() ? cs->all_capable :
							     cs->told;
	if (!cs->agreed)
		log_rinfo(ls, "not all members know claims: locks are looked up");
}

/*
 * Switch and counters.
 */

ssize_t dlm_claim_show_mode(struct dlm_ls *ls, char *buf)
{
	return sysfs_emit(buf, "%s\n", mode_names[ls->ls_claims.mode]);
}

/* Claims that are under way end as they would have. */
ssize_t dlm_claim_store_mode(struct dlm_ls *ls, const char *buf, size_t len)
{
	int mode = sysfs_match_string(mode_names, buf);

	if (mode < 0)
		return mode;
	WRITE_ONCE(ls->ls_claims.mode, mode);
	return len;
}

static int counters_show(struct seq_file *file, void *unused)
{
	struct dlm_ls *ls = file->private;
	struct dlm_claims *cs = &ls->ls_claims;
	struct claim_parked *p;
	unsigned int parked = 0;
	int i;

	spin_lock_bh(&cs->lock);
	list_for_each_entry(p, &cs->parked, list)
		parked++;
	for (i = 0; i < DLM_CLAIM_COUNTERS; i++)
		seq_printf(file, "%s %llu\n", counter_names[i],
			   cs->counters[i]);
	seq_printf(file, "pending %u\n", cs->unsettled);
	seq_printf(file, "parked %u\n", parked);
	seq_printf(file, "agreed %d\n", cs->agreed);
	spin_unlock_bh(&cs->lock);
	return 0;
}
DEFINE_SHOW_ATTRIBUTE(counters);

void dlm_claim_create_debug_file(struct dlm_ls *ls, struct dentry *dir)
{
	char name[DLM_LOCKSPACE_LEN + sizeof("_claim")];

	snprintf(name, sizeof(name), "%s_claim", ls->ls_name);
	ls->ls_claims.dentry = debugfs_create_file(name, 0444, dir, ls,
						   &counters_fops);
}

void dlm_claim_delete_debug_file(struct dlm_ls *ls)
{
	debugfs_remove(ls->ls_claims.dentry);
}

/*
 * Beginning and end.
 */

void dlm_claim_new_lockspace(struct dlm_ls *ls)
{
	struct dlm_claims *cs = &ls->ls_claims;

	cs->ls = ls;
	spin_lock_init(&cs->lock);
	INIT_LIST_HEAD(&cs->open);
	INIT_LIST_HEAD(&cs->retry);
	INIT_LIST_HEAD(&cs->dirs);
	INIT_LIST_HEAD(&cs->replies);
	INIT_LIST_HEAD(&cs->parked);
	init_waitqueue_head(&cs->wait);
	INIT_WORK(&cs->send_work, send_work);
	INIT_WORK(&cs->parked_work, parked_work);
	hrtimer_init(&cs->timer, CLOCK_MONOTONIC, HRTIMER_MODE_REL_SOFT);
	cs->timer.function = timer_fires;
}

static void free_claims(struct list_head *link)
{
	struct dlm_claim *c, *next;

	list_for_each_entry_safe(c, next, link, link) {
		c->r->res_claim = NULL;
		list_del(&c->open);
		kfree(c);
	}
}

/*
 * The caller gives all its locks up at once, after it has finished with them,
 * so there is nothing left to hide: claims end with their resources, and
 * operations that still wait with their locks. Called when this node has left,
 * twice: while others may still be inside, and when nobody is.
 */
void dlm_claim_release_lockspace(struct dlm_ls *ls)
{
	struct dlm_claims *cs = &ls->ls_claims;
	struct claim_reply *reply, *next_reply;
	struct claim_dir *dir, *next_dir;
	struct dlm_claim *c, *next;
	struct claim_parked *p;
	bool first;

	spin_lock_bh(&cs->lock);
	first = !cs->stopping;
	cs->stopping = true;
	spin_unlock_bh(&cs->lock);
	hrtimer_cancel(&cs->timer);
	cancel_work_sync(&cs->send_work);
	cancel_work_sync(&cs->parked_work);
	if (first) {
		while ((p = pop_parked(cs))) {
			dlm_put_lockspace(ls);
			kfree(p);
		}
		wake_up_all(&cs->wait);
		return;
	}

	list_for_each_entry_safe(dir, next_dir, &cs->dirs, list) {
		free_claims(&dir->gathered);
		free_claims(&dir->sent);
		kfree(dir);
	}
	free_claims(&cs->retry);
	/* those that are asking are on no list but this */
	list_for_each_entry_safe(c, next, &cs->open, open) {
		c->r->res_claim = NULL;
		kfree(c);
	}
	list_for_each_entry_safe(reply, next_reply, &cs->replies, list)
		kfree(reply);
}

int dlm_claim_init(void)
{
	claim_wq = alloc_workqueue("dlm_claim", WQ_MEM_RECLAIM | WQ_HIGHPRI, 0);
	return claim_wq ? 0 : -ENOMEM;
}

void dlm_claim_exit(void)
{
	destroy_workqueue(claim_wq);
}

// SPDX-License-Identifier: GPL-2.0-only
/*
 * Claims on the wire: gathered, sent in batches, judged by the directory node,
 * answered. claim.c says what becomes of them.
 */
#include "claim_internal.h"
#include "claim_trace.h"
#include "midcomms.h"

/*
 * Messages. Those of claims have m_lkid = the batch's number and m_result = the
 * number of entries. m_extra has packed names or struct claim_refusal. An
 * answer says in m_remid how many claims were judged. The claimer takes no
 * other for confirmed.
 *
 * A packed name is its length, a bit for each byte, and the bytes that differ
 * from the name before it in the message. The bits of these bytes are set.
 * Beyond a name's end are zeros, as before the first. The names of one node's
 * files are long and alike. Those of GFS2 and OCFS2 take 5 to 12 bytes instead
 * of 25 and 33.
 */

/* To p, unless that is NULL; returns how much it takes. */
static unsigned int pack_name(u8 *p, u8 *last, const char *name,
			      unsigned int len)
{
	unsigned int i, size = 1 + BITS_TO_BYTES(len);

	if (p) {
		memset(p, 0, size);
		*p = len;
	}
	for (i = 0; i < len; i++) {
		if (last[i] == (u8)name[i])
			continue;
		last[i] = name[i];
		if (p) {
			p[1 + i / 8] |= 1 << i % 8;
			p[size] = name[i];
		}
		size++;
	}
	memset(last + len, 0, DLM_RESNAME_MAXLEN - len);
	return size;
}

/* Makes the name of the last one; returns what follows, or NULL: malformed. */
static const u8 *unpack_name(const u8 *p, const u8 *end, u8 *name,
			     unsigned int *len)
{
	const u8 *differs = p + 1;
	unsigned int i;

	if (p >= end || !*p || *p > DLM_RESNAME_MAXLEN)
		return NULL;
	*len = *p;
	if (BITS_TO_BYTES(*len) >= end - p)
		return NULL;
	p += 1 + BITS_TO_BYTES(*len);
	for (i = 0; i < *len; i++) {
		if (!(differs[i / 8] & 1 << i % 8))
			continue;
		if (p == end)
			return NULL;
		name[i] = *p++;
	}
	memset(name + *len, 0, DLM_RESNAME_MAXLEN - *len);
	return p;
}

static struct dlm_mhandle *new_message(struct dlm_ls *ls, int nodeid, int type,
				       int len, __le32 seq, unsigned int entries,
				       struct dlm_message **ms_ret)
{
	struct dlm_message *ms;
	struct dlm_mhandle *mh;
	char *buf;

#if LINUX_6_1
	mh = dlm_midcomms_get_mhandle(nodeid, sizeof(*ms) + len, GFP_ATOMIC, &buf);
#else
	mh = dlm_midcomms_get_mhandle(nodeid, sizeof(*ms) + len, &buf);
#endif
	if (!mh)
		return NULL;
	ms = (struct dlm_message *)buf;
	ms->m_header.h_version = cpu_to_le32(DLM_HEADER_MAJOR |
					     DLM_HEADER_MINOR);
	ms->m_header.u.h_lockspace = cpu_to_le32(ls->ls_global_id);
	ms->m_header.h_nodeid = cpu_to_le32(claim_our_nodeid());
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

void claim_start_timer(struct dlm_claims *cs)
{
	if (!cs->stopping && !hrtimer_is_queued(&cs->timer))
		hrtimer_start(&cs->timer, ns_to_ktime((u64)claim_batch_us * NSEC_PER_USEC),
			      HRTIMER_MODE_REL_SOFT);
}

static void watch_answers(struct dlm_claims *cs)
{
	if (!cs->stopping)
		queue_delayed_work(claim_wq, &cs->overdue_work,
				   msecs_to_jiffies(claim_resend_ms));
}

static bool send_batch(struct dlm_claims *cs, struct claim_dir *dir)
{
	unsigned int entries = 0, len = 0, size;
	u8 last[DLM_RESNAME_MAXLEN] = { 0 };
	struct dlm_claim *c, *next;
	struct dlm_message *ms;
	struct dlm_mhandle *mh;
	u8 *p;

	list_for_each_entry(c, &dir->gathered, link) {
		if (entries == cs->limit)
			break;
		size = pack_name(NULL, last, c->r->res_name, c->r->res_length);
		if (len + size > DLM_CLAIM_BATCH_BYTES)
			break;
		len += size;
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
			      entries, false);

	p = ms->m_extra;
	len = 0;
	memset(last, 0, sizeof(last));
	list_for_each_entry_safe(c, next, &dir->gathered, link) {
		if (len == entries)
			break;
		c->dir = NULL;
		c->seq = dir->seq;
		c->index = len++;
		p += pack_name(p, last, c->r->res_name, c->r->res_length);
		list_move_tail(&c->link, &dir->sent);
	}
	dlm_midcomms_commit_mhandle(mh, NULL, 0);
	watch_answers(cs);
	return true;
}

/* One batch is out to a node; the next gathers meanwhile, unless it hurries. */
static bool batch_due(struct dlm_claims *cs, struct claim_dir *dir)
{
	if (!dir->gathered_count)
		return false;
	if (dir->hurry)
		return true;
	if (dir->outstanding)
		return false;
	return dir->gathered_count >= cs->limit ||
	       ktime_us_delta(ktime_get(), dir->gathered_since) >= claim_batch_us;
}

static void send_batches(struct dlm_claims *cs)
{
	struct claim_dir *dir;

	/* a recovery takes what is gathered */
	if (dlm_locking_stopped(cs->ls) || !cs->limit)
		return;

	list_for_each_entry(dir, &cs->dirs, list) {
		while (batch_due(cs, dir)) {
			if (!send_batch(cs, dir)) {
				claim_start_timer(cs);
				break;
			}
		}
		if (!dir->gathered_count)
			dir->hurry = false;
		else if (!dir->outstanding)
			claim_start_timer(cs);
	}
}

void claim_hurry(struct dlm_claims *cs)
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

struct claim_dir *claim_get_dir(struct dlm_claims *cs, int nodeid)
{
	struct claim_dir *dir = find_dir(cs, nodeid);

	if (dir)
		return dir;
#if LINUX_7_2
	dir = kzalloc_obj(*dir, GFP_ATOMIC);
#else
	dir = kzalloc(sizeof(*dir), GFP_ATOMIC);
#endif
	if (!dir)
		return NULL;
	dir->nodeid = nodeid;
	INIT_LIST_HEAD(&dir->gathered);
	INIT_LIST_HEAD(&dir->sent);
	list_add_tail(&dir->list, &cs->dirs);
	return dir;
}

void claim_gather(struct dlm_claims *cs, struct claim_dir *dir,
		  struct dlm_claim *c)
{
	c->dir = dir;
	list_add_tail(&c->link, &dir->gathered);
	if (!dir->gathered_count++)
		dir->gathered_since = ktime_get();
	if (c->strict)
		dir->hurry = true;
	if (c->strict || dir->gathered_count >= cs->limit)
		send_batches(cs);
	else if (!dir->outstanding)
		claim_start_timer(cs);
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
	ms->m_remid = cpu_to_le32(reply->judged);
	memcpy(ms->m_extra, reply->refused, len);
	dlm_midcomms_commit_mhandle(mh, NULL, 0);
	return true;
}

static void receive_claims(struct dlm_ls *ls, const struct dlm_message *ms)
{
	unsigned int i, entries = le32_to_cpu(ms->m_result);
	int master, from = le32_to_cpu(ms->m_header.h_nodeid);
	const u8 *p = ms->m_extra, *end = p + payload(ms);
	u8 name[DLM_RESNAME_MAXLEN] = { 0 };
	struct dlm_claims *cs = &ls->ls_claims;
	struct claim_reply *reply;
	unsigned int len;

#if LINUX_7_2
	reply = kzalloc_obj(*reply, GFP_ATOMIC);
#else
	reply = kzalloc(sizeof(*reply), GFP_ATOMIC);
#endif
	if (!reply) {
		log_error(ls, "no memory to answer claims of node %d: it asks again",
			  from);
		return;
	}
	reply->nodeid = from;
	reply->seq = ms->m_lkid;

	for (i = 0; i < entries && i < DLM_CLAIM_BATCH; i++) {
		p = unpack_name(p, end, name, &len);
		if (!p) {
			log_limit(ls, "malformed claims from node %d: it looks them up", from);
			break;
		}
		if (dlm_master_lookup(ls, from, (char *)name, len, 0, &master,
				      NULL))
			master = -1;
		if (master != from) {
			reply->refused[reply->count].index = cpu_to_le32(i);
			reply->refused[reply->count++].nodeid =
				cpu_to_le32(master);
		}
	}
	reply->judged = i;
	trace_dlm_claim_batch(ls->ls_global_id, from, le32_to_cpu(ms->m_lkid),
			      i, true);

	spin_lock_bh(&cs->lock);
	cs->counters[DLM_CLAIM_ANSWERED] += i;
	cs->counters[DLM_CLAIM_REFUSED] += reply->count;
	if (send_reply(ls, reply)) {
		kfree(reply);
	} else {
		cs->counters[DLM_CLAIM_RETRIES]++;
		list_add_tail(&reply->list, &cs->replies);
		claim_start_timer(cs);
	}
	spin_unlock_bh(&cs->lock);
}

/* The refusals are of claims that were judged, and in their order. */
static bool well_formed(const struct dlm_message *ms)
{
	const struct claim_refusal *refused = (const void *)ms->m_extra;
	u32 i, index, next = 0, count = le32_to_cpu(ms->m_result);

	if (count > payload(ms) / sizeof(*refused))
		return false;
	for (i = 0; i < count; i++) {
		index = le32_to_cpu(refused[i].index);
		if (index < next || index >= le32_to_cpu(ms->m_remid))
			return false;
		next = index + 1;
	}
	return true;
}

/* 0 (nobody else), a master, or -1. Asked for in the order of claims. */
static int told_master(const struct claim_refusal **refused, unsigned int *count,
		       unsigned int index)
{
	int nodeid;

	while (*count && le32_to_cpu((*refused)->index) < index) {
		++*refused;
		--*count;
	}
	if (!*count || le32_to_cpu((*refused)->index) != index)
		return 0;
	nodeid = le32_to_cpu((*refused)->nodeid);
	return nodeid > 0 ? nodeid : -1;
}

static void receive_claim_reply(struct dlm_ls *ls, const struct dlm_message *ms)
{
	const struct claim_refusal *refused = (const void *)ms->m_extra;
	unsigned int index, count = le32_to_cpu(ms->m_result);
	unsigned int judged = le32_to_cpu(ms->m_remid);
	u32 seq = le32_to_cpu(ms->m_lkid);
	int from = le32_to_cpu(ms->m_header.h_nodeid);
	struct dlm_claims *cs = &ls->ls_claims;
	struct dlm_claim *c, *next;
	struct claim_dir *dir;
	LIST_HEAD(answered);
	struct dlm_rsb *r;
	u64 ordinal;

	if (!well_formed(ms)) {
		log_limit(ls, "malformed answer to claims from node %d: they are looked up",
			  from);
		judged = 0;
	}

	spin_lock_bh(&cs->lock);
	dir = find_dir(cs, from);
	if (dir && (s32)(seq - dir->valid_from) < 0) {
		/* asked again, or to be asked again */
		spin_unlock_bh(&cs->lock);
		return;
	}
	if (!dir || !dir->outstanding) {
		spin_unlock_bh(&cs->lock);
		log_limit(ls, "unexpected answer %u to claims from node %d",
			  seq, from);
		return;
	}
	dir->outstanding--;
	/* in the order of batches, and mostly the first */
	list_for_each_entry_safe(c, next, &dir->sent, link) {
		if ((s32)(c->seq - seq) > 0)
			break;
		if (c->seq == seq)
			list_move_tail(&c->link, &answered);
	}
	send_batches(cs);
	spin_unlock_bh(&cs->lock);

	while ((r = claim_pop(cs, &answered, &ordinal, &index))) {
		claim_answered(r, ordinal, index >= judged ? -1 :
			       told_master(&refused, &count, index));
		claim_release(r);
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
 * Unsent claims are sent later.
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

void claim_send_work(struct work_struct *work)
{
	struct dlm_claims *cs = container_of(work, struct dlm_claims, send_work);
	bool retry;

	spin_lock_bh(&cs->lock);
	send_batches(cs);
	retry_replies(cs);
	if (!list_empty(&cs->replies))
		claim_start_timer(cs);
	retry = !list_empty(&cs->retry);
	spin_unlock_bh(&cs->lock);
	if (retry)
		claim_retry_requests(cs);
}

/*
 * No message is lost between nodes that live, but a directory node that finds
 * no memory does not answer. So what was out at the last look and still is, is
 * sent again. If it was heard before, its sender is the master on record. The
 * directory node then takes it for the same claim. A REMOVE comes later, and
 * only from the holder of a settled claim.
 */
static bool overdue(struct claim_dir *dir)
{
	struct dlm_claim *oldest;

	oldest = list_first_entry_or_null(&dir->sent, struct dlm_claim, link);
	return dir->outstanding &&
	       (s32)((oldest ? oldest->seq : dir->seq) - dir->checked) <= 0;
}

static void send_again(struct dlm_claims *cs, struct claim_dir *dir)
{
	struct dlm_claim *c;

	list_for_each_entry(c, &dir->sent, link) {
		c->dir = dir;
		dir->gathered_count++;
		cs->counters[DLM_CLAIM_RESENT]++;
	}
	list_splice_init(&dir->sent, &dir->gathered);
	dir->outstanding = 0;
	dir->valid_from = dir->seq + 1;
	dir->hurry = true;
}

void claim_overdue_work(struct work_struct *work)
{
	struct dlm_claims *cs = container_of(work, struct dlm_claims,
					     overdue_work.work);
	struct claim_dir *dir;
	bool again = false;

	spin_lock_bh(&cs->lock);
	list_for_each_entry(dir, &cs->dirs, list) {
		/* (a recovery takes what is out) */
		if (!dlm_locking_stopped(cs->ls) && overdue(dir))
			send_again(cs, dir);
		dir->checked = dir->seq;
		again |= dir->outstanding;
	}
	send_batches(cs);
	if (again)
		watch_answers(cs);
	spin_unlock_bh(&cs->lock);
}

enum hrtimer_restart claim_timer(struct hrtimer *timer)
{
	struct dlm_claims *cs = container_of(timer, struct dlm_claims, timer);

	queue_work(claim_wq, &cs->send_work);
	return HRTIMER_NORESTART;
}

/* A recovery asks again for what is on the list; old answers mean nothing. */
void claim_take_unanswered(struct dlm_claims *cs, struct list_head *list)
{
	struct claim_reply *reply, *next;
	struct claim_dir *dir;

	list_for_each_entry(dir, &cs->dirs, list) {
		list_splice_tail_init(&dir->sent, list);
		list_splice_tail_init(&dir->gathered, list);
		dir->gathered_count = 0;
		dir->outstanding = 0;
		dir->hurry = false;
		dir->valid_from = dir->seq + 1;
	}
	list_for_each_entry_safe(reply, next, &cs->replies, list) {
		list_del(&reply->list);
		kfree(reply);
	}
}

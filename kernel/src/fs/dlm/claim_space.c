// SPDX-License-Identifier: GPL-2.0-only
/*
 * The claims of a lockspace: recovery, agreement, switch, counters, beginning
 * and end.
 */
#include "claim_internal.h"

#include <linux/debugfs.h>
#include <linux/moduleparam.h>
#include <linux/seq_file.h>
#include <linux/sysfs.h>

#define CREATE_TRACE_POINTS
#include "claim_trace.h"

static const char * const mode_names[] = { "off", "strict", "on" };

static const char * const counter_names[DLM_CLAIM_COUNTERS] = {
	"claims", "claims_strict", "batches", "confirmed", "refusals",
	"merges", "recovered", "dropped", "capped", "retries", "resent",
	"lookups", "answered", "refused", "barrier_waits", "barrier_wait_us",
	"barrier_wait_max_us",
};

struct workqueue_struct *claim_wq;

static int set_batch_us(const char *val, const struct kernel_param *kp)
{
	return param_set_uint_minmax(val, kp, 10, USEC_PER_SEC);
}

static const struct kernel_param_ops batch_us_ops = {
	.set = set_batch_us,
	.get = param_get_uint,
};

/* Without a lower bound, a timer or a work would run without a pause. */
static int set_resend_ms(const char *val, const struct kernel_param *kp)
{
	return param_set_uint_minmax(val, kp, 100, 3600 * MSEC_PER_SEC);
}

static const struct kernel_param_ops resend_ms_ops = {
	.set = set_resend_ms,
	.get = param_get_uint,
};

unsigned int claim_batch_us = DLM_CLAIM_BATCH_US;
module_param_cb(claim_batch_us, &batch_us_ops, &claim_batch_us, 0644);
MODULE_PARM_DESC(claim_batch_us, "Age at which a batch of claims is sent, in microseconds");

unsigned int claim_resend_ms = DLM_CLAIM_RESEND_MS;
module_param_cb(claim_resend_ms, &resend_ms_ops, &claim_resend_ms, 0644);
MODULE_PARM_DESC(claim_resend_ms, "Age at which unanswered claims are sent again, in milliseconds");

/*
 * Recovery. It begins while no thread is inside the gate and no message is
 * handled. Every PENDING claim then becomes a lock that waits for the answer to
 * a LOOKUP, with an unknown master. So it is not among the masters that this
 * node tells others. It yields to any node that says that it is the master. It
 * is looked up again when the directory is there. Those that are ASKING are
 * ordinary requests, which a recovery knows how to handle.
 */
void dlm_claim_recover(struct dlm_ls *ls)
{
	struct dlm_claims *cs = &ls->ls_claims;
	unsigned int index;
	struct dlm_rsb *r;
	LIST_HEAD(again);
	u64 ordinal;

	spin_lock_bh(&cs->lock);
	WRITE_ONCE(cs->limit, 0);
	WRITE_ONCE(cs->all_limit, 0);
	cs->told_limit = 0;
	claim_take_unanswered(cs, &again);
	spin_unlock_bh(&cs->lock);

	while ((r = claim_pop(cs, &again, &ordinal, &index))) {
		claim_to_lookup(r, ordinal);
		claim_release(r);
	}
}

/*
 * Agreement. Every node says in its status that it is capable, and how many
 * claims it takes in a message. The lowest polls all, and says before it lets
 * the others go on whether all are, and the lowest number; they all ask it.
 * With a member that is not, there are no claims.
 */

void dlm_claim_tell(struct dlm_ls *ls, struct rcom_config *rf)
{
	unsigned int limit = READ_ONCE(ls->ls_claims.all_limit);
	u32 bits = DLM_CLAIM_CAPABLE;

	if (limit)
		bits |= DLM_CLAIM_AGREED;
	else
		limit = DLM_CLAIM_BATCH;
	rf->rf_unused1 = cpu_to_le32(bits | limit << DLM_CLAIM_LIMIT_SHIFT);
}

void dlm_claim_told(struct dlm_ls *ls, const struct rcom_config *rf, int nodeid)
{
	u32 bits = le32_to_cpu(rf->rf_unused1);
	unsigned int limit = bits >> DLM_CLAIM_LIMIT_SHIFT;
	struct dlm_member *memb;

	list_for_each_entry(memb, &ls->ls_nodes, list) {
		if (memb->nodeid == nodeid)
			memb->claim_limit = bits & DLM_CLAIM_CAPABLE ? limit : 0;
	}
	if (nodeid == ls->ls_low_nodeid)
		ls->ls_claims.told_limit = bits & DLM_CLAIM_AGREED ? limit : 0;
}

void dlm_claim_members_polled(struct dlm_ls *ls)
{
	unsigned int limit = DLM_CLAIM_BATCH;
	struct dlm_member *memb;

	list_for_each_entry(memb, &ls->ls_nodes, list) {
		if (memb->nodeid != claim_our_nodeid())
			limit = min(limit, memb->claim_limit);
	}
	WRITE_ONCE(ls->ls_claims.all_limit, limit);
}

void dlm_claim_recovered(struct dlm_ls *ls)
{
	struct dlm_claims *cs = &ls->ls_claims;
	unsigned int limit = cs->told_limit;

	if (ls->ls_low_nodeid == claim_our_nodeid())
		limit = cs->all_limit;
	WRITE_ONCE(cs->limit, min_t(unsigned int, limit, DLM_CLAIM_BATCH));
	if (!limit)
		log_rinfo(ls, "not all members know claims: locks are looked up");
}

/*
 * Switch and counters.
 */

ssize_t dlm_claim_show_mode(struct dlm_ls *ls, char *buf)
{
	return sysfs_emit(buf, "%s\n", mode_names[READ_ONCE(ls->ls_claims.mode)]);
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
	cs->counters[DLM_CLAIM_LOOKUPS] = atomic64_read(&cs->lookups);
	list_for_each_entry(p, &cs->parked, list)
		parked++;
	for (i = 0; i < DLM_CLAIM_COUNTERS; i++)
		seq_printf(file, "%s %llu\n", counter_names[i],
			   cs->counters[i]);
	seq_printf(file, "pending %u\n", cs->unsettled);
	seq_printf(file, "parked %u\n", parked);
	seq_printf(file, "agreed %d\n", cs->limit != 0);
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
	INIT_WORK(&cs->send_work, claim_send_work);
	INIT_DELAYED_WORK(&cs->parked_work, claim_parked_work);
	INIT_DELAYED_WORK(&cs->overdue_work, claim_overdue_work);
#if LINUX_7_2
	hrtimer_setup(&cs->timer, claim_timer, CLOCK_MONOTONIC, HRTIMER_MODE_REL_SOFT);
#else
	hrtimer_init(&cs->timer, CLOCK_MONOTONIC, HRTIMER_MODE_REL_SOFT);
	cs->timer.function = claim_timer;
#endif
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
 * The caller gives all its locks up at once, after it has finished with them.
 * So there is nothing left to hide. Claims end with their resources, and
 * waiting operations with their locks. Called when this node has left, twice:
 * while others may still be inside, and when nobody is.
 */
void dlm_claim_release_lockspace(struct dlm_ls *ls)
{
	struct dlm_claims *cs = &ls->ls_claims;
	struct claim_reply *reply, *next_reply;
	struct claim_dir *dir, *next_dir;
	struct dlm_claim *c, *next;
	bool first;

	spin_lock_bh(&cs->lock);
	first = !cs->stopping;
	WRITE_ONCE(cs->stopping, true);
	spin_unlock_bh(&cs->lock);
	hrtimer_cancel(&cs->timer);
	cancel_work_sync(&cs->send_work);
	cancel_delayed_work_sync(&cs->parked_work);
	cancel_delayed_work_sync(&cs->overdue_work);
	if (first) {
		claim_drop_parked(cs);
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

/* It did not come into being, but others may have asked it for something. */
void dlm_claim_fail_lockspace(struct dlm_ls *ls)
{
	dlm_claim_release_lockspace(ls);
	dlm_claim_release_lockspace(ls);
}

int dlm_claim_init(void)
{
#if LINUX_7_2
	claim_wq = alloc_workqueue("dlm_claim", WQ_MEM_RECLAIM | WQ_HIGHPRI | WQ_PERCPU, 0);
#else
	claim_wq = alloc_workqueue("dlm_claim", WQ_MEM_RECLAIM | WQ_HIGHPRI, 0);
#endif
	return claim_wq ? 0 : -ENOMEM;
}

void dlm_claim_exit(void)
{
	destroy_workqueue(claim_wq);
}

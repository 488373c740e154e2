// SPDX-License-Identifier: GPL-2.0-only
/*
 * The functions private to lock.c that claim.c needs. lock.c includes this
 * file at its end.
 */

int dlm_claim_find_lkb(struct dlm_ls *ls, uint32_t lkid, struct dlm_lkb **lkb)
{
	return find_lkb(ls, lkid, lkb);
}

/* True if the stock code takes the arguments of an operation on a lock. */
bool dlm_claim_valid_lock(int mode, struct dlm_lksb *lksb, u32 flags,
			  void (*ast)(void *astarg), void *astarg,
			  void (*bast)(void *astarg, int mode))
{
	struct dlm_args args;

	return !set_lock_args(mode, lksb, flags, 0,
#if LINUX_6_1
#ifdef CONFIG_DLM_DEPRECATED_API
			      0,
#endif
#endif
			      ast, astarg, bast, &args);
}

bool dlm_claim_valid_unlock(u32 flags)
{
	struct dlm_args args;

	return !set_unlock_args(flags, NULL, &args);
}

/* A provisionally granted lock becomes a request for the mode it has. */
void dlm_claim_ungrant(struct dlm_rsb *r, struct dlm_lkb *lkb)
{
	int mode = lkb->lkb_grmode;

	del_lkb(r, lkb);
	lkb->lkb_grmode = DLM_LOCK_IV;
	lkb->lkb_rqmode = mode;
	lkb->lkb_nodeid = -1;
	lkb->lkb_remid = 0;
}

int dlm_claim_request(struct dlm_rsb *r, struct dlm_lkb *lkb)
{
	return _request_lock(r, lkb);
}

/* As if a lookup had been sent: recovery sends it again. */
void dlm_claim_await_lookup(struct dlm_lkb *lkb, int nodeid)
{
	add_to_waiters(lkb, DLM_MSG_LOOKUP, nodeid);
}

void dlm_claim_unpark(struct dlm_rsb *r)
{
	process_lookup_list(r);
}
#if LINUX_6_1

/* A claim must not overtake the REMOVE of the name's last life. */
void dlm_claim_before_lookup(struct dlm_rsb *r)
{
	wait_pending_remove(r);
}
#endif

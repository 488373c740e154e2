// SPDX-License-Identifier: GPL-2.0-only
/*
 * KUnit tests of claims: names, answers, and what becomes of a claim. claim_send.c
 * includes this file at its end.
 */
#include <kunit/test.h>

#define NAMES 4
/* A packed name at its longest. */
#define ROOM (1 + BITS_TO_BYTES(DLM_RESNAME_MAXLEN) + DLM_RESNAME_MAXLEN)

static const char * const names[NAMES] = {
	"       2          1a2b3c",
	"       2          1a2b3d",
	"N",
	"0123456789012345678901234567890123456789012345678901234567890123",
};

static void names_come_back(struct kunit *test)
{
	u8 last[DLM_RESNAME_MAXLEN] = { 0 }, first[DLM_RESNAME_MAXLEN] = { 0 };
	u8 name[DLM_RESNAME_MAXLEN] = { 0 };
	u8 *all = kunit_kzalloc(test, NAMES * ROOM, GFP_KERNEL);
	unsigned int i, len, size, used = 0;
	const u8 *p = all;

	KUNIT_ASSERT_NOT_NULL(test, all);
	for (i = 0; i < NAMES; i++) {
		size = pack_name(NULL, first, names[i], strlen(names[i]));
		KUNIT_EXPECT_EQ(test, size, pack_name(all + used, last, names[i],
						      strlen(names[i])));
		used += size;
	}
	/* one byte differs */
	KUNIT_EXPECT_LT(test, used, NAMES * ROOM);
	for (i = 0; i < NAMES; i++) {
		p = unpack_name(p, all + used, name, &len);
		KUNIT_ASSERT_NOT_NULL(test, p);
		KUNIT_EXPECT_EQ(test, len, (unsigned int)strlen(names[i]));
		KUNIT_EXPECT_EQ(test, memcmp(name, names[i], len), 0);
	}
	KUNIT_EXPECT_PTR_EQ(test, p, (const u8 *)all + used);
	KUNIT_EXPECT_NULL(test, unpack_name(p, all + used, name, &len));
}

/* The example in Documentation/filesystems/dlm-claim-wire.rst. */
static void names_are_packed_as_specified(struct kunit *test)
{
	static const u8 wanted[] = { 0x02, 0x03, 0x61, 0x62, 0x02, 0x02, 0x63 };
	u8 last[DLM_RESNAME_MAXLEN] = { 0 }, packed[sizeof(wanted)];
	unsigned int size;

	size = pack_name(packed, last, "ab", 2);
	KUNIT_EXPECT_EQ(test, size, 4u);
	size += pack_name(packed + size, last, "ac", 2);
	KUNIT_EXPECT_EQ(test, size, (unsigned int)sizeof(wanted));
	KUNIT_EXPECT_EQ(test, memcmp(packed, wanted, sizeof(wanted)), 0);
}

/* Whatever is cut off: nothing behind the end is read. */
static void cut_names_are_malformed(struct kunit *test)
{
	u8 last[DLM_RESNAME_MAXLEN] = { 0 }, name[DLM_RESNAME_MAXLEN] = { 0 };
	u8 packed[ROOM], none[] = { 0 }, longest[] = { DLM_RESNAME_MAXLEN + 1 };
	unsigned int i, len, size;

	size = pack_name(packed, last, names[0], strlen(names[0]));
	for (i = 0; i < size; i++) {
		memset(name, 0, sizeof(name));
		KUNIT_EXPECT_NULL(test, unpack_name(packed, packed + i, name, &len));
	}
	KUNIT_EXPECT_NULL(test, unpack_name(none, none + 1, name, &len));
	KUNIT_EXPECT_NULL(test, unpack_name(longest, longest + 1, name, &len));
}

/* A message with this much room for refusals. */
static struct dlm_message *answer(struct kunit *test, unsigned int room,
				  unsigned int count, unsigned int judged)
{
	unsigned int len = sizeof(struct dlm_message) +
			   room * sizeof(struct claim_refusal);
	struct dlm_message *ms = kunit_kzalloc(test, len, GFP_KERNEL);

	KUNIT_ASSERT_NOT_NULL(test, ms);
	ms->m_header.h_length = cpu_to_le16(len);
	ms->m_result = cpu_to_le32(count);
	ms->m_remid = cpu_to_le32(judged);
	return ms;
}

static void say(struct dlm_message *ms, unsigned int place, u32 index, int nodeid)
{
	struct claim_refusal *refused = (void *)ms->m_extra;

	refused[place].index = cpu_to_le32(index);
	refused[place].nodeid = cpu_to_le32(nodeid);
}

static void answers_are_checked(struct kunit *test)
{
	struct dlm_message *ms = answer(test, 2, 2, 4);

	say(ms, 0, 1, 5);
	say(ms, 1, 3, -1);
	KUNIT_EXPECT_TRUE(test, well_formed(ms));
	say(ms, 1, 1, -1);
	KUNIT_EXPECT_FALSE(test, well_formed(ms));
	/* of one that was not judged */
	say(ms, 1, 4, -1);
	KUNIT_EXPECT_FALSE(test, well_formed(ms));
	KUNIT_EXPECT_FALSE(test, well_formed(answer(test, 0, 1, 4)));
	KUNIT_EXPECT_FALSE(test, well_formed(answer(test, 1, U32_MAX, U32_MAX)));
	KUNIT_EXPECT_TRUE(test, well_formed(answer(test, 0, 0, 0)));
}

static void masters_are_found(struct kunit *test)
{
	struct dlm_message *ms = answer(test, 4, 4, 9);
	const struct claim_refusal *refused = (const void *)ms->m_extra;
	unsigned int count = 4;

	say(ms, 0, 0, 3);
	say(ms, 1, 2, -1);
	say(ms, 2, 5, 7);
	say(ms, 3, 8, 0);
	KUNIT_EXPECT_EQ(test, told_master(&refused, &count, 0), 3);
	KUNIT_EXPECT_EQ(test, told_master(&refused, &count, 1), 0);
	KUNIT_EXPECT_EQ(test, told_master(&refused, &count, 2), -1);
	/* 3 to 5 were settled meanwhile */
	KUNIT_EXPECT_EQ(test, told_master(&refused, &count, 6), 0);
	KUNIT_EXPECT_EQ(test, told_master(&refused, &count, 7), 0);
	/* no node has this number */
	KUNIT_EXPECT_EQ(test, told_master(&refused, &count, 8), -1);
	KUNIT_EXPECT_EQ(test, told_master(&refused, &count, 9), 0);
}

/* A resource with a claim in this state, and nothing that waits. */
static struct dlm_rsb *claimed(struct kunit *test, struct dlm_ls *ls, u8 state)
{
	struct dlm_rsb *r = kunit_kzalloc(test, sizeof(*r), GFP_KERNEL);
	struct dlm_claim *c = kzalloc(sizeof(*c), GFP_KERNEL);

	KUNIT_ASSERT_NOT_NULL(test, r);
	KUNIT_ASSERT_NOT_NULL(test, c);
	r->res_ls = ls;
	r->res_claim = c;
	r->res_master_nodeid = claim_our_nodeid();
	kref_init(&r->res_ref);
	/* of the claim, and never the last */
	kref_get(&r->res_ref);
	INIT_LIST_HEAD(&r->res_lookup);
	INIT_LIST_HEAD(&r->res_grantqueue);
	INIT_LIST_HEAD(&r->res_convertqueue);
	INIT_LIST_HEAD(&r->res_waitqueue);
	c->r = r;
	c->state = state;
	c->ordinal = 7;
	INIT_LIST_HEAD(&c->link);
	INIT_LIST_HEAD(&c->open);
	list_add_tail(&c->open, &ls->ls_claims.open);
	ls->ls_claims.unsettled++;
	return r;
}

static void drop(struct dlm_rsb *r)
{
	if (!r->res_claim)
		return;
	list_del(&r->res_claim->open);
	kfree(r->res_claim);
	r->res_claim = NULL;
}

static void claims_take_only_their_answer(struct kunit *test)
{
	static const u8 states[] = { CLAIM_PENDING, CLAIM_ASKING, CLAIM_UNASKED };
	struct dlm_ls *ls = kunit_kzalloc(test, sizeof(*ls), GFP_KERNEL);
	struct dlm_claims *cs = &ls->ls_claims;
	unsigned int i, confirmed = 0, refused = 0;
	struct dlm_rsb *r;

	KUNIT_ASSERT_NOT_NULL(test, ls);
	dlm_claim_new_lockspace(ls);
	for (i = 0; i < ARRAY_SIZE(states); i++) {
		bool takes = states[i] == CLAIM_PENDING;

		r = claimed(test, ls, states[i]);
		claim_answered(r, 6, 0);
		KUNIT_EXPECT_NOT_NULL(test, r->res_claim);
		claim_answered(r, 7, 0);
		KUNIT_EXPECT_EQ(test, !r->res_claim, takes);
		confirmed += takes;
		drop(r);

		/* its lock is gone by then */
		r = claimed(test, ls, states[i]);
		claim_answered(r, 7, -1);
		KUNIT_EXPECT_EQ(test, !r->res_claim, takes);
		KUNIT_EXPECT_EQ(test, !r->res_master_nodeid, takes);
		refused += takes;
		drop(r);

		r = claimed(test, ls, states[i]);
		claim_to_lookup(r, 6);
		KUNIT_EXPECT_NOT_NULL(test, r->res_claim);
		drop(r);
	}
	KUNIT_EXPECT_EQ(test, cs->counters[DLM_CLAIM_CONFIRMED], (u64)confirmed);
	KUNIT_EXPECT_EQ(test, cs->counters[DLM_CLAIM_REFUSALS], (u64)refused);
	KUNIT_EXPECT_TRUE(test, list_empty(&cs->open));
}

/* What becomes of a new request for a lock of a resource with this claim. */
static int request(struct kunit *test, struct dlm_rsb *r, u32 flags)
{
	struct dlm_lkb *lkb = kunit_kzalloc(test, sizeof(*lkb), GFP_KERNEL);

	KUNIT_ASSERT_NOT_NULL(test, lkb);
	lkb->lkb_exflags = flags;
	lkb->lkb_nodeid = -1;
	return dlm_claim_set_master(r, lkb);
}

static void a_claim_serves_the_names_next_life(struct kunit *test)
{
	struct dlm_ls *ls = kunit_kzalloc(test, sizeof(*ls), GFP_KERNEL);
	struct dlm_lkb *held = kunit_kzalloc(test, sizeof(*held), GFP_KERNEL);
	struct dlm_claims *cs = &ls->ls_claims;
	struct dlm_rsb *r;

	KUNIT_ASSERT_NOT_NULL(test, ls);
	KUNIT_ASSERT_NOT_NULL(test, held);
	dlm_claim_new_lockspace(ls);
	set_bit(LSFL_RUNNING, &ls->ls_flags);
	cs->limit = 8;
	cs->mode = DLM_CLAIM_ON;

	r = claimed(test, ls, CLAIM_PENDING);
	KUNIT_EXPECT_EQ(test, request(test, r, DLM_LKF_CLAIM), 0);
	KUNIT_EXPECT_NOT_NULL(test, r->res_claim);
	/* its last life has a lock still */
	list_add(&held->lkb_statequeue, &r->res_grantqueue);
	KUNIT_EXPECT_EQ(test, request(test, r, DLM_LKF_CLAIM), 1);
	KUNIT_EXPECT_FALSE(test, list_empty(&r->res_lookup));
	drop(r);

	r = claimed(test, ls, CLAIM_PENDING);
	/* of nothing new */
	KUNIT_EXPECT_EQ(test, request(test, r, 0), 1);
	/* and behind one that waits */
	KUNIT_EXPECT_EQ(test, request(test, r, DLM_LKF_CLAIM), 1);
	drop(r);

	r = claimed(test, ls, CLAIM_PENDING);
	r->res_claim->strict = true;
	KUNIT_EXPECT_EQ(test, request(test, r, DLM_LKF_CLAIM), 1);
	drop(r);

	r = claimed(test, ls, CLAIM_PENDING);
	cs->mode = DLM_CLAIM_STRICT;
	KUNIT_EXPECT_EQ(test, request(test, r, DLM_LKF_CLAIM), 1);
	drop(r);
}

/* The lowest node's limit is what all take; a member without one ends claims. */
static void members_agree_on_the_lowest_limit(struct kunit *test)
{
	struct dlm_ls *ls = kunit_kzalloc(test, sizeof(*ls), GFP_KERNEL);
	struct dlm_member other = { .nodeid = claim_our_nodeid() + 1 };
	struct rcom_config rf = { };

	KUNIT_ASSERT_NOT_NULL(test, ls);
	dlm_claim_new_lockspace(ls);
	INIT_LIST_HEAD(&ls->ls_nodes);
	list_add(&other.list, &ls->ls_nodes);
	ls->ls_low_nodeid = claim_our_nodeid();

	rf.rf_unused1 = cpu_to_le32(DLM_CLAIM_CAPABLE | 8 << DLM_CLAIM_LIMIT_SHIFT);
	dlm_claim_told(ls, &rf, other.nodeid);
	dlm_claim_members_polled(ls);
	dlm_claim_recovered(ls);
	KUNIT_EXPECT_EQ(test, ls->ls_claims.limit, 8u);
	dlm_claim_tell(ls, &rf);
	KUNIT_EXPECT_EQ(test, le32_to_cpu(rf.rf_unused1),
			DLM_CLAIM_CAPABLE | DLM_CLAIM_AGREED | 8 << DLM_CLAIM_LIMIT_SHIFT);

	/* a stock node, or one whose answers do not say what was judged */
	rf.rf_unused1 = cpu_to_le32(0xc);
	dlm_claim_told(ls, &rf, other.nodeid);
	dlm_claim_members_polled(ls);
	dlm_claim_recovered(ls);
	KUNIT_EXPECT_EQ(test, ls->ls_claims.limit, 0u);
}

static struct kunit_case claim_cases[] = {
	KUNIT_CASE(names_come_back),
	KUNIT_CASE(names_are_packed_as_specified),
	KUNIT_CASE(cut_names_are_malformed),
	KUNIT_CASE(answers_are_checked),
	KUNIT_CASE(masters_are_found),
	KUNIT_CASE(claims_take_only_their_answer),
	KUNIT_CASE(a_claim_serves_the_names_next_life),
	KUNIT_CASE(members_agree_on_the_lowest_limit),
	{ }
};

static struct kunit_suite claim_suite = {
	.name = "dlm_claim",
	.test_cases = claim_cases,
};

kunit_test_suite(claim_suite);

/* SPDX-License-Identifier: GPL-2.0-only */
#undef TRACE_SYSTEM
#define TRACE_SYSTEM dlm_claim

#if !defined(__CLAIM_TRACE_DOT_H__) || defined(TRACE_HEADER_MULTI_READ)
#define __CLAIM_TRACE_DOT_H__

#include <linux/tracepoint.h>

TRACE_DEFINE_ENUM(CLAIM_IS_MADE);
TRACE_DEFINE_ENUM(CLAIM_IS_CONFIRMED);
TRACE_DEFINE_ENUM(CLAIM_IS_REFUSED);
TRACE_DEFINE_ENUM(CLAIM_IS_MERGED);
TRACE_DEFINE_ENUM(CLAIM_IS_DROPPED);
TRACE_DEFINE_ENUM(CLAIM_IS_RECOVERED);

#define show_claim_event(event) __print_symbolic(event, \
	{ CLAIM_IS_MADE, "claim" }, \
	{ CLAIM_IS_CONFIRMED, "confirmed" }, \
	{ CLAIM_IS_REFUSED, "refused" }, \
	{ CLAIM_IS_MERGED, "merged" }, \
	{ CLAIM_IS_DROPPED, "dropped" }, \
	{ CLAIM_IS_RECOVERED, "recovery" })

/* What becomes of a claim. */
TRACE_EVENT(dlm_claim,
	TP_PROTO(u32 ls_id, const char *name, int len, u64 ordinal,
		 enum claim_event how, int nodeid),
	TP_ARGS(ls_id, name, len, ordinal, how, nodeid),
	TP_STRUCT__entry(
		__field(u32, ls_id)
		__field(u64, ordinal)
		__field(int, nodeid)
		__field(int, how)
		__dynamic_array(unsigned char, name, len)
	),
	TP_fast_assign(
		__entry->ls_id = ls_id;
		__entry->ordinal = ordinal;
		__entry->nodeid = nodeid;
		__entry->how = how;
		memcpy(__get_dynamic_array(name), name, len);
	),
	TP_printk("ls_id=%u ordinal=%llu how=%s nodeid=%d res_name=%s",
		  __entry->ls_id, __entry->ordinal,
		  show_claim_event(__entry->how), __entry->nodeid,
		  __print_hex_str(__get_dynamic_array(name),
				  __get_dynamic_array_len(name)))
);

TRACE_EVENT(dlm_claim_batch,
	TP_PROTO(u32 ls_id, int nodeid, u32 seq, unsigned int claims,
		 bool answered),
	TP_ARGS(ls_id, nodeid, seq, claims, answered),
	TP_STRUCT__entry(
		__field(u32, ls_id)
		__field(int, nodeid)
		__field(u32, seq)
		__field(unsigned int, claims)
		__field(bool, answered)
	),
	TP_fast_assign(
		__entry->ls_id = ls_id;
		__entry->nodeid = nodeid;
		__entry->seq = seq;
		__entry->claims = claims;
		__entry->answered = answered;
	),
	TP_printk("ls_id=%u nodeid=%d seq=%u claims=%u how=%s", __entry->ls_id,
		  __entry->nodeid, __entry->seq, __entry->claims,
		  __entry->answered ? "answered" : "sent")
);

/* An operation that waited at the barrier goes on. */
TRACE_EVENT(dlm_claim_barrier,
	TP_PROTO(u32 ls_id, u32 lkid, u64 us),
	TP_ARGS(ls_id, lkid, us),
	TP_STRUCT__entry(
		__field(u32, ls_id)
		__field(u32, lkid)
		__field(u64, us)
	),
	TP_fast_assign(
		__entry->ls_id = ls_id;
		__entry->lkid = lkid;
		__entry->us = us;
	),
	TP_printk("ls_id=%u lkb_id=%x waited_us=%llu", __entry->ls_id,
		  __entry->lkid, __entry->us)
);

/* The next operation of the lock passes the barrier: its object is gone. */
TRACE_EVENT(dlm_claim_freed,
	TP_PROTO(u32 ls_id, u32 lkid),
	TP_ARGS(ls_id, lkid),
	TP_STRUCT__entry(
		__field(u32, ls_id)
		__field(u32, lkid)
	),
	TP_fast_assign(
		__entry->ls_id = ls_id;
		__entry->lkid = lkid;
	),
	TP_printk("ls_id=%u lkb_id=%x", __entry->ls_id, __entry->lkid)
);

#endif

#undef TRACE_INCLUDE_PATH
#define TRACE_INCLUDE_PATH .
#define TRACE_INCLUDE_FILE claim_trace
#include <trace/define_trace.h>

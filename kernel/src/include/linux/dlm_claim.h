/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Claimed mastership of DLM resources: what a file system says to the DLM.
 *
 * Both flags are private to one node: they are never sent, and a DLM whose
 * claim is switched off ignores them.
 */

#ifndef __LINUX_DLM_CLAIM_H__
#define __LINUX_DLM_CLAIM_H__

#ifdef CONFIG_DLM_CLAIM

/*
 * For new requests. The caller is creating the object that the lock belongs
 * to, and holds locks that keep every other node from learning of it.
 */
#define DLM_LKF_CLAIM	0x01000000

/*
 * For conversions and unlocks. The object that the lock belongs to has been
 * freed: there is nothing to hide behind this lock, so weakening it must not
 * wait for claims (two nodes could wait for each other for ever).
 */
#define DLM_LKF_FREED	0x02000000

#else
#define DLM_LKF_CLAIM	0
#define DLM_LKF_FREED	0
#endif

#endif

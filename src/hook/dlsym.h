/* SPDX-License-Identifier: MIT */
/*
 * dlsym.h - the next dlsym and dlvsym behind onehop's own
 */
#ifndef OH_HOOK_DLSYM_H_
#define OH_HOOK_DLSYM_H_

/* The next definition of dlsym; never NULL. Calling it looks at no new objects. */
void *oh_dlsym_next(void *handle, const char *name);

#endif

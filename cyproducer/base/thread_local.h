/* One name for thread-local storage in C11, C23 and C++: C++ has no `_Thread_local`, C11 no `thread_local`. */
#ifndef CYPRODUCER_THREAD_LOCAL_H
#define CYPRODUCER_THREAD_LOCAL_H

#ifdef __cplusplus
#define CYP_THREAD_LOCAL thread_local
#else
#define CYP_THREAD_LOCAL _Thread_local
#endif

#endif

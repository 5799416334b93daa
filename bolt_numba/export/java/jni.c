/* The functions of boltnumba.Native.  A session is an address; exceptions are boltnumba.BoltException. */

#include <jni.h>
#include <stdlib.h>

#include "bolt_numba.h"

#define METHOD(result, name) JNIEXPORT result JNICALL Java_boltnumba_Native_##name

static bn_session *at(jlong session) { return (bn_session *)(intptr_t)session; }

/* Throw what a call refused; whether there was anything. */
static int refused(JNIEnv *env, bn_status status, const bn_session *session) {
    if (status == BN_OK) return 0;
    jclass kind = (*env)->FindClass(env, "boltnumba/BoltException");
    if (kind == NULL) return 1;
    jmethodID make = (*env)->GetMethodID(env, kind, "<init>", "(ILjava/lang/String;)V");
    jstring text = (*env)->NewStringUTF(env, bn_error_message(session));
    if (make == NULL || text == NULL) return 1;
    jobject error = (*env)->NewObject(env, kind, make, (jint)status, text);
    if (error != NULL) (*env)->Throw(env, error);
    return 1;
}

/* The only session of a model, which goes with it. */
static jlong session_of(JNIEnv *env, bn_status status, bn_model *model, jint threads) {
    const bn_options options = {threads};
    bn_session *session = NULL;
    if (refused(env, status, NULL)) return 0;
    status = bn_session_create(model, &options, &session);
    bn_model_close(model);
    return refused(env, status, NULL) ? 0 : (jlong)(intptr_t)session;
}

METHOD(jlong, open)(JNIEnv *env, jclass self, jstring path, jint threads) {
    bn_model *model = NULL;
    (void)self;
    const char *text = (*env)->GetStringUTFChars(env, path, NULL);
    if (text == NULL) return 0;
    bn_status status = bn_model_open(text, &model);
    (*env)->ReleaseStringUTFChars(env, path, text);
    return session_of(env, status, model, threads);
}

METHOD(jlong, openBytes)(JNIEnv *env, jclass self, jbyteArray data, jint threads) {
    bn_model *model = NULL;
    (void)self;
    jsize nbytes = (*env)->GetArrayLength(env, data);
    jbyte *bytes = (*env)->GetByteArrayElements(env, data, NULL);
    if (bytes == NULL) return 0;
    bn_status status = bn_model_from_memory(bytes, (size_t)nbytes, &model);
    (*env)->ReleaseByteArrayElements(env, data, bytes, JNI_ABORT);
    return session_of(env, status, model, threads);
}

METHOD(jlong, copy)(JNIEnv *env, jclass self, jlong session) {
    bn_session *made = NULL;
    (void)self;
    return refused(env, bn_session_clone(at(session), &made), NULL) ? 0 : (jlong)(intptr_t)made;
}

METHOD(void, destroy)(JNIEnv *env, jclass self, jlong session) {
    (void)env, (void)self;
    bn_session_destroy(at(session));
}

METHOD(void, setThreads)(JNIEnv *env, jclass self, jlong session, jint threads) {
    (void)self;
    refused(env, bn_session_set_threads(at(session), threads), at(session));
}

METHOD(void, setTimeLimit)(JNIEnv *env, jclass self, jlong session, jdouble seconds) {
    (void)self;
    refused(env, bn_session_set_time_limit(at(session), seconds), at(session));
}

METHOD(jint, count)(JNIEnv *env, jclass self, jlong session, jboolean outputs) {
    (void)env, (void)self;
    return outputs ? bn_session_outputs(at(session)) : bn_session_inputs(at(session));
}

static int told(JNIEnv *env, jlong session, jboolean outputs, jint number, bn_info *info) {
    bn_status status = outputs ? bn_session_output_info(at(session), number, info)
                               : bn_session_input_info(at(session), number, info);
    return !refused(env, status, at(session));
}

METHOD(jstring, name)(JNIEnv *env, jclass self, jlong session, jboolean outputs, jint number) {
    bn_info info;
    (void)self;
    return told(env, session, outputs, number, &info) ? (*env)->NewStringUTF(env, info.name) : NULL;
}

METHOD(jlongArray, type)(JNIEnv *env, jclass self, jlong session, jboolean outputs, jint number) {
    bn_info info;
    (void)self;
    if (!told(env, session, outputs, number, &info)) return NULL;
    jlongArray made = (*env)->NewLongArray(env, info.rank + 1);
    if (made == NULL) return NULL;
    const jlong dtype = info.dtype;
    (*env)->SetLongArrayRegion(env, made, 0, 1, &dtype);
    for (int i = 0; i < info.rank; i++) {
        const jlong size = info.dims[i];
        (*env)->SetLongArrayRegion(env, made, i + 1, 1, &size);
    }
    return made;
}

METHOD(jobject, buffer)(JNIEnv *env, jclass self, jlong session, jboolean outputs, jint number) {
    bn_info info;
    (void)self;
    if (!told(env, session, outputs, number, &info)) return NULL;
    void *memory = outputs ? bn_session_output(at(session), number) : bn_session_input(at(session), number);
    if (memory == NULL) return refused(env, BN_NO_MEMORY, at(session)), NULL;
    return (*env)->NewDirectByteBuffer(env, memory, (jlong)info.nbytes);
}

/* Shapes: as many as there are inputs, each with as many sizes as that has dimensions; BoltModel sees to it. */
METHOD(void, resize)(JNIEnv *env, jclass self, jlong session, jobjectArray shapes) {
    jsize count = (*env)->GetArrayLength(env, shapes);
    (void)self;
    int64_t **rows = calloc((size_t)count + 1, sizeof *rows);
    int is_whole = rows != NULL;
    for (jsize i = 0; is_whole && i < count; i++) {
        jlongArray shape = (*env)->GetObjectArrayElement(env, shapes, i);
        jsize rank = (*env)->GetArrayLength(env, shape);
        rows[i] = calloc((size_t)rank + 1, sizeof **rows);
        is_whole = rows[i] != NULL;
        for (jsize axis = 0; is_whole && axis < rank; axis++) {
            jlong size;
            (*env)->GetLongArrayRegion(env, shape, axis, 1, &size);
            rows[i][axis] = size;
        }
        (*env)->DeleteLocalRef(env, shape);
    }
    refused(env, is_whole ? bn_session_resize(at(session), (const int64_t *const *)rows) : BN_NO_MEMORY, at(session));
    for (jsize i = 0; rows != NULL && i < count; i++) free(rows[i]);
    free(rows);
}

METHOD(void, setInputShape)(JNIEnv *env, jclass self, jlong session, jint input, jlongArray shape) {
    jsize rank = (*env)->GetArrayLength(env, shape);
    (void)self;
    int64_t *dims = calloc((size_t)rank + 1, sizeof *dims);
    for (jsize axis = 0; dims != NULL && axis < rank; axis++) {
        jlong size;
        (*env)->GetLongArrayRegion(env, shape, axis, 1, &size);
        dims[axis] = size;
    }
    bn_status status = dims == NULL ? BN_NO_MEMORY : bn_session_set_input_shape(at(session), input, dims, (int)rank);
    refused(env, status, at(session));
    free(dims);
}

METHOD(void, run)(JNIEnv *env, jclass self, jlong session) {
    (void)self;
    refused(env, bn_session_run(at(session)), at(session));
}

METHOD(void, resetState)(JNIEnv *env, jclass self, jlong session) {
    (void)self;
    refused(env, bn_session_reset_state(at(session)), at(session));
}

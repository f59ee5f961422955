//! Server-side apply, `application/apply-patch+yaml`: who owns which field.

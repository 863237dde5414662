// What can go wrong between the page and the server, in the server's own words where it has any.

interface ErrorObject {
  message: string
  code?: string | null
}

export class ApiError extends Error {
  constructor(
    message: string,
    readonly code: string | null = null,
    readonly status: number | null = null,
    readonly requestId: string | null = null,
  ) {
    super(message)
  }
}

/** OpenAI's error object, from a body or from an event of a stream. */
export function asApiError(object: ErrorObject, status: number | null, requestId: string | null): ApiError {
  return new ApiError(object.message, object.code ?? null, status, requestId)
}

/** The error of a response that is not a success; where the body is no error object, the body itself is the message. */
export async function errorOf(response: Response): Promise<ApiError> {
  const text = await response.text()
  const requestId = response.headers.get('x-request-id')
  try {
    return asApiError((JSON.parse(text) as { error: ErrorObject }).error, response.status, requestId)
  } catch {
    return new ApiError(text || response.statusText, null, response.status, requestId)
  }
}

"""How the runtime lends this package to a project's interpreter."""
